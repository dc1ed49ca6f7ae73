"""Record invalidations, list them and delete old ones. `invalidation_routing` creates their tasks."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from trace_etl.api.task.payload import InvalidScope
from trace_etl.api.user.data.invalidations import InvalidationItem
from trace_etl.model.task import Fence
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all, page_start_values


@dataclass(frozen=True)
class NewInvalidation:
    """An invalid scope of a generation: a partition, or the rows of a block range."""

    dataset_uuid: UUID
    dataset_version: UUID
    kind: str
    partition_key: str | None
    range_start: int | None
    range_end: int | None
    filter: dict[str, Any] | None
    reason: str
    once_key: str | None = None
    """Idempotency key: a task that reports the same key twice reports one invalidation."""
    is_reported_defect: bool = False
    """Whether a checker reported it about its input. Otherwise the producer or a user invalidated it."""
    is_reorganisation: bool = False
    """Whether the chain replaced these blocks."""


def as_rows(new: list[NewInvalidation]) -> Jsonb:
    """Return rows of the SQL type `new_invalidation`."""
    return Jsonb(
        [
            {
                "dataset_uuid": str(n.dataset_uuid),
                "dataset_version": str(n.dataset_version),
                "kind": n.kind,
                "partition_key": n.partition_key,
                "range_start": n.range_start,
                "range_end": n.range_end,
                "filter": n.filter or None,
                "reason": n.reason,
                "once_key": n.once_key,
                "is_reorganisation": n.is_reorganisation,
            }
            for n in new
        ]
    )


_RECORD = """
WITH made AS (
    INSERT INTO invalidations (org_id, dataset_uuid, dataset_version, kind, partition_key,
                               range_start, range_end, filter, reason, once_key, made_by, task_id,
                               attempt, is_reorganisation)
    SELECT %(org_id)s, n.dataset_uuid, n.dataset_version, n.kind, n.partition_key, n.range_start,
           n.range_end, n.filter, n.reason, n.once_key, %(made_by)s, %(task_id)s, %(attempt)s,
           is_due_to_reorganisation(n.is_reorganisation, n.once_key, %(task_id)s)
      FROM jsonb_populate_recordset(NULL::new_invalidation, %(new)s) n
    ON CONFLICT ON CONSTRAINT invalidations_once DO NOTHING
    RETURNING invalidation_id
)
SELECT subject FROM enqueue(ARRAY(
    SELECT outbox_entry('route_invalidation', invalidation_id) FROM made))
"""


async def record(
    conn: Conn, org_id: UUID, new: list[NewInvalidation], *, made_by: str, fence: Fence | None
) -> list[UUID]:
    """Record invalidations and enqueue their routing. Returns the ids of the new ones."""
    values = {
        "org_id": org_id,
        "made_by": made_by,
        "task_id": fence.task_id if fence else None,
        "attempt": fence.attempt if fence else None,
        "new": as_rows(new),
    }
    return [row[0] for row in await (await conn.execute(_RECORD, values)).fetchall()]


_GET = """
SELECT invalidation_id, dataset_uuid, dataset_version, kind, partition_key, range_start AS start,
       range_end AS end, filter, reason, is_reorganisation
  FROM invalidations WHERE invalidation_id = ANY(%(invalidation_ids)s)
"""


async def get_scopes(conn: Conn, invalidation_ids: list[UUID]) -> dict[UUID, InvalidScope]:
    """Return the invalid scopes by the ids of their invalidations."""
    scopes = await fetch_all(conn, InvalidScope, _GET, {"invalidation_ids": invalidation_ids})
    return {row.invalidation_id: row for row in scopes}


# An invalidation stays visible until every consumer has processed it or its task was canceled.
_DELETE_PROCESSED = """
DELETE FROM invalidations WHERE invalidation_id IN (
    SELECT i.invalidation_id FROM invalidations i
     WHERE i.routed_at IS NOT NULL AND i.made_at < now() - %(older_than)s
       AND NOT EXISTS (SELECT FROM invalidation_consumers c JOIN tasks t USING (task_id)
                        WHERE c.invalidation_id = i.invalidation_id AND c.processed_at IS NULL
                          AND t.status <> 'Canceled')
     ORDER BY i.made_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
"""


async def delete_processed(conn: Conn, *, older_than: timedelta, limit: int) -> int:
    """Delete routed invalidations older than the retention that every consumer has processed."""
    return (
        await conn.execute(_DELETE_PROCESSED, {"older_than": older_than, "limit": limit})
    ).rowcount


_LIST = """
SELECT i.invalidation_id, p.name AS dataset, g.name AS dag, j.name AS job,
       w.output_name AS output, i.kind, i.partition_key, i.range_start AS start,
       i.range_end AS end, i.filter,
       i.reason, i.is_reorganisation, i.made_by, i.made_at, i.routed_at,
       (SELECT count(*) FROM invalidation_consumers c
         WHERE c.invalidation_id = i.invalidation_id) AS tasks,
       (SELECT count(*) FROM invalidation_consumers c
         WHERE c.invalidation_id = i.invalidation_id AND c.processed_at IS NOT NULL) AS processed
  FROM datasets d
 CROSS JOIN LATERAL (SELECT job_id, output_name FROM dataset_producers p
                      WHERE p.dataset_uuid = d.dataset_uuid ORDER BY job_id LIMIT 1) w
  JOIN jobs j ON j.job_id = w.job_id JOIN dags g USING (dag_id)
  LEFT JOIN publications p USING (dataset_uuid)
 CROSS JOIN LATERAL (SELECT * FROM invalidations i WHERE i.dataset_uuid = d.dataset_uuid
                        AND (%(is_reorganisation)s::boolean IS NULL
                             OR i.is_reorganisation = %(is_reorganisation)s)
                        AND (%(before)s::timestamptz IS NULL
                             OR (i.made_at, i.invalidation_id) < (%(before)s, %(before_id)s))
                      ORDER BY i.made_at DESC, i.invalidation_id DESC LIMIT %(limit)s) i
 WHERE d.org_id = %(org_id)s AND (%(name)s::text IS NULL OR p.name = %(name)s)
 ORDER BY i.made_at DESC, i.invalidation_id DESC LIMIT %(limit)s
"""


async def list_invalidations(
    conn: Conn,
    org_id: UUID,
    *,
    dataset: str | None,
    is_reorganisation: bool | None,
    after: tuple[datetime, UUID] | None,
    limit: int,
) -> list[InvalidationItem]:
    """List one page of invalidations, newest first, with the progress of their consumers."""
    values = {
        "org_id": org_id,
        "name": dataset,
        "is_reorganisation": is_reorganisation,
        **page_start_values(after),
        "limit": limit,
    }
    return await fetch_all(conn, InvalidationItem, _LIST, values)
