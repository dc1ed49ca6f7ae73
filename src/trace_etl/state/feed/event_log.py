"""Reading events and triggers: what happened to datasets, newest first."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.model.errors import NotFound
from trace_etl.state.db.pool import Conn

Position = tuple[datetime, UUID]


@dataclass(frozen=True)
class EventFilter:
    """What a listing is about; None: anything."""

    dag: str | None = None
    job: str | None = None
    dataset: str | None = None
    routed: bool | None = None


@dataclass(frozen=True)
class EventView:
    event_id: UUID
    dag: str
    job: str
    output: str
    dataset: str | None
    dataset_uuid: UUID
    dataset_version: UUID
    partition_key: str | None
    start: int | None
    end: int | None
    cursor: int | None
    producer_task_id: UUID
    attempt: int
    accepted_at: datetime
    routed_at: datetime | None


_VIEW = """
SELECT e.event_id, g.name AS dag, j.name AS job, d.output_name AS output, p.name AS dataset,
       e.dataset_uuid, e.dataset_version, e.partition_key, e.range_start AS start,
       e.range_end AS end, e.cursor_value AS cursor, e.producer_task_id, e.attempt, e.accepted_at,
       e.routed_at
  FROM events e JOIN datasets d USING (dataset_uuid)
  JOIN jobs j ON j.job_id = coalesce(d.job_id, (  -- of several producers, the one that wrote it
       SELECT t.job_id FROM tasks t WHERE t.task_id = e.producer_task_id))
  JOIN dags g USING (dag_id) LEFT JOIN publications p ON p.dataset_uuid = d.dataset_uuid
 WHERE e.org_id = %(org_id)s
"""
_LIST = (
    _VIEW
    + """
   AND (%(dag)s::text IS NULL OR g.name = %(dag)s)
   AND (%(job)s::text IS NULL OR j.name = %(job)s)
   AND (%(dataset)s::text IS NULL OR p.name = %(dataset)s)
   AND (%(routed)s::boolean IS NULL OR (e.routed_at IS NOT NULL) = %(routed)s)
   AND (%(before)s::timestamptz IS NULL
        OR (e.accepted_at, e.event_id) < (%(before)s, %(before_id)s))
 ORDER BY e.accepted_at DESC, e.event_id DESC
 LIMIT %(limit)s
"""
)


async def listing(
    conn: Conn, org_id: UUID, which: EventFilter, *, after: Position | None, limit: int
) -> list[EventView]:
    """An org's events, newest first, one page."""
    before, before_id = after or (None, None)
    page = {"before": before, "before_id": before_id, "limit": limit}
    async with conn.cursor(row_factory=class_row(EventView)) as cursor:
        await cursor.execute(_LIST, {"org_id": org_id, **vars(which), **page})
        return await cursor.fetchall()


_GET = _VIEW + " AND e.event_id = %(event_id)s"


async def get(conn: Conn, org_id: UUID, event_id: UUID) -> EventView:
    """One event. Raises NotFound."""
    async with conn.cursor(row_factory=class_row(EventView)) as cursor:
        await cursor.execute(_GET, {"org_id": org_id, "event_id": event_id})
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(f"no event {event_id}")
    return found


@dataclass(frozen=True)
class TriggerView:
    event_id: UUID
    dag: str
    job: str
    source_kind: str
    partition_key: str | None
    start: int | None
    end: int | None
    cursor: int | None
    triggered_at: datetime
    routed_at: datetime | None


# Over the tasks of source jobs, which are their triggers: few, whatever the events are.
_TRIGGERS = """
SELECT e.event_id, g.name AS dag, j.name AS job, r.source ->> 'kind' AS source_kind,
       e.partition_key, e.range_start AS start, e.range_end AS end, e.cursor_value AS cursor,
       e.accepted_at AS triggered_at, e.routed_at
  FROM jobs j JOIN dags g USING (dag_id)
  JOIN tasks t ON t.job_id = j.job_id
  JOIN job_revisions r ON r.revision_id = t.revision_id
   AND r.source ->> 'kind' IN ('manual', 'cron', 'webhook')
  JOIN events e ON e.producer_task_id = t.task_id
 WHERE j.org_id = %(org_id)s
   AND j.job_id IN (SELECT s.job_id FROM job_revisions s WHERE s.activation = 'source')
   AND (%(dag)s::text IS NULL OR g.name = %(dag)s)
   AND (%(job)s::text IS NULL OR j.name = %(job)s)
   AND (%(source_kind)s::text IS NULL OR r.source ->> 'kind' = %(source_kind)s)
   AND (%(before)s::timestamptz IS NULL
        OR (e.accepted_at, e.event_id) < (%(before)s, %(before_id)s))
 ORDER BY e.accepted_at DESC, e.event_id DESC
 LIMIT %(limit)s
"""


async def triggers(
    conn: Conn,
    org_id: UUID,
    *,
    dag: str | None,
    job: str | None,
    source_kind: str | None,
    after: Position | None,
    limit: int,
) -> list[TriggerView]:
    """What people, clocks and webhooks asked for, newest first, one page."""
    before, before_id = after or (None, None)
    which = {"org_id": org_id, "dag": dag, "job": job, "source_kind": source_kind}
    page = {"before": before, "before_id": before_id, "limit": limit}
    async with conn.cursor(row_factory=class_row(TriggerView)) as cursor:
        await cursor.execute(_TRIGGERS, {**which, **page})
        return await cursor.fetchall()
