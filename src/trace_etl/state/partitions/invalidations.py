"""What was published and is not what it was: recorded, and given to whoever read it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, LiteralString
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from trace_etl.model.task import Fence
from trace_etl.state.db.pool import Conn


@dataclass(frozen=True)
class NewInvalidation:
    """A scope of a generation that changed: a partition, or rows of a range."""

    dataset_uuid: UUID
    dataset_version: UUID
    kind: str
    partition_key: str | None
    range_start: int | None
    range_end: int | None
    filter: dict[str, Any] | None
    reason: str
    once_key: str | None = None
    """The same key of the same task again is the same invalidation."""
    is_doubt: bool = False
    """Said of an input by who checks it, not by who writes it."""


# What `columns` gives, as rows.
TOLD: LiteralString = """
           unnest(%(datasets)s::uuid[], %(versions)s::uuid[], %(kinds)s::text[], %(keys)s::text[],
                  %(starts)s::bigint[], %(ends)s::bigint[], %(filters)s::jsonb[],
                  %(reasons)s::text[], %(once_keys)s::text[])
           AS n (dataset_uuid, dataset_version, kind, partition_key, range_start, range_end,
                 filter, reason, once_key)"""


def columns(told: list[NewInvalidation]) -> dict[str, list[Any]]:
    """Many at once, a list for each field."""
    return {
        "datasets": [n.dataset_uuid for n in told],
        "versions": [n.dataset_version for n in told],
        "kinds": [n.kind for n in told],
        "keys": [n.partition_key for n in told],
        "starts": [n.range_start for n in told],
        "ends": [n.range_end for n in told],
        "filters": [Jsonb(n.filter) if n.filter else None for n in told],
        "reasons": [n.reason for n in told],
        "once_keys": [n.once_key for n in told],
    }


_RECORD = f"""
WITH made AS (
    INSERT INTO invalidations (org_id, dataset_uuid, dataset_version, kind, partition_key,
                               range_start, range_end, filter, reason, once_key, made_by, task_id,
                               attempt)
    SELECT %(org_id)s, n.dataset_uuid, n.dataset_version, n.kind, n.partition_key, n.range_start,
           n.range_end, n.filter, n.reason, n.once_key, %(made_by)s, %(task_id)s, %(attempt)s
      FROM {TOLD}
    ON CONFLICT ON CONSTRAINT invalidations_once DO NOTHING
    RETURNING invalidation_id
)
SELECT subject FROM enqueue(ARRAY(
    SELECT outbox_entry('route_invalidation', invalidation_id) FROM made))
"""


async def record(
    conn: Conn, org_id: UUID, new: list[NewInvalidation], *, made_by: str, fence: Fence | None
) -> list[UUID]:
    """Remember what is invalid and ask for its routing. Returns those that are new."""
    values = {
        "org_id": org_id,
        "made_by": made_by,
        "task_id": fence.task_id if fence else None,
        "attempt": fence.attempt if fence else None,
        **columns(new),
    }
    return [row[0] for row in await (await conn.execute(_RECORD, values)).fetchall()]


def creation(scopes: LiteralString) -> LiteralString:
    """The end of a statement: tasks of what a query selects, each noted down and woken."""
    return f"""
created AS (
    SELECT task_id, job_id, invalidation_id FROM create_tasks(ARRAY({scopes}))
), noted AS (
    INSERT INTO invalidation_consumers (invalidation_id, job_id, task_id)
    SELECT invalidation_id, job_id, task_id FROM created
)
SELECT task_id FROM created
"""


# What a consumer must do again, from four sides: the tasks of the partitions that changed, the
# tasks that made what overlaps them, those that read them by another name, and those that run now
# (and may have pinned what is gone). What waits reads the change when it is claimed. Scopes that
# overlap become one, since each must be able to replace what stands. Jobs that keep no partitions
# (in-process relays, upserts) are handed the invalid scope itself.
_ROUTE = """
WITH told AS (
    UPDATE invalidations i SET routed_at = now()
     WHERE i.invalidation_id = ANY(%(invalidation_ids)s)
    RETURNING i.*
), consumer AS (
    SELECT DISTINCT ON (i.invalidation_id, c.revision_id)
           i.invalidation_id, i.dataset_uuid, i.dataset_version, i.partition_key,
           i.range_start AS first, i.range_end AS last, v.generation_no, c.org_id, c.job_id,
           c.revision_id, c.generation_hash, c.runtime, c.bulk, c.max_attempts, c.max_concurrency,
           c.timeout_seconds, c.heartbeat_timeout_seconds,
           c.runtime = 'dispatcher' OR c.update_strategy = 'append' AS relays,
           coalesce(i.once_key LIKE 'rewritten:%%', false) AS is_rewrite
      FROM told i
      JOIN dataset_versions v ON v.dataset_version = i.dataset_version
      JOIN consumers c ON c.dataset_uuid = i.dataset_uuid
       AND c.dataset_version = i.dataset_version AND c.org_id = i.org_id
), changed AS (
    SELECT i.invalidation_id, i.partition_key FROM told i WHERE i.partition_key IS NOT NULL
     UNION
    SELECT i.invalidation_id, p.partition_key
      FROM told i
      JOIN dataset_versions v ON v.dataset_version = i.dataset_version
      JOIN partitions p ON p.dataset_version = i.dataset_version
       AND overlaps_blocks(p, v.generation_no, i.range_start, i.range_end)
     WHERE i.range_start IS NOT NULL
), touched AS (
    SELECT c.invalidation_id, c.revision_id, c.partition_key, c.first, c.last,
           NULL::bigint AS cursor_value
      FROM consumer c WHERE c.relays
     UNION ALL
    SELECT c.invalidation_id, c.revision_id, t.partition_key, t.range_start, t.range_end,
           t.cursor_value
      FROM consumer c
      JOIN changed k ON k.invalidation_id = c.invalidation_id
      JOIN tasks t ON t.job_id = c.job_id
       AND t.dedupe_key = concat_ws(':', c.dataset_uuid, c.dataset_version, c.generation_hash,
                                    'p:' || k.partition_key)
     WHERE NOT c.relays AND (t.status IN ('Running', 'Completed')
                             OR (t.status = 'Failed' AND t.retry_at IS NULL))
     UNION ALL
    SELECT c.invalidation_id, c.revision_id, coalesce(t.partition_key, q.partition_key),
           coalesce(t.range_start, q.range_start), coalesce(t.range_end, q.range_end), NULL
      FROM consumer c
      JOIN job_outputs o ON o.revision_id = c.revision_id
      JOIN dataset_versions v ON v.dataset_version = o.dataset_version
      JOIN partitions q ON q.dataset_version = o.dataset_version
       AND overlaps_blocks(q, v.generation_no, c.first, c.last)
      JOIN tasks t ON t.task_id = q.task_id
     WHERE NOT c.relays AND c.first IS NOT NULL
     UNION ALL
    SELECT c.invalidation_id, c.revision_id, t.partition_key,
           coalesce(t.range_start, q.range_start), coalesce(t.range_end, q.range_end),
           CASE WHEN q.range_start IS NULL THEN t.cursor_value END
      FROM consumer c
      JOIN (SELECT invalidation_id, partition_key FROM changed
             UNION ALL
            SELECT invalidation_id, '*' FROM told) k ON k.invalidation_id = c.invalidation_id
      JOIN partition_inputs l
        ON l.input_version = c.dataset_version AND l.input_key = k.partition_key
      JOIN job_outputs o
        ON o.revision_id = c.revision_id AND o.dataset_version = l.dataset_version
      JOIN partitions q ON q.dataset_version = l.dataset_version
       AND q.partition_key = l.partition_key AND q.task_id = l.task_id
      JOIN tasks t ON t.task_id = q.task_id
     WHERE NOT c.relays
     UNION ALL
    SELECT c.invalidation_id, c.revision_id, t.partition_key, t.range_start, t.range_end,
           t.cursor_value
      FROM consumer c
      JOIN tasks t ON t.job_id = c.job_id AND t.status = 'Running'
      JOIN job_revisions r
        ON r.revision_id = t.revision_id AND r.generation_hash = c.generation_hash
     WHERE NOT c.relays AND scopes_overlap(t.range_start, t.range_end, c.first, c.last)
), begins AS (
    SELECT *, first > max(last) OVER earlier IS NOT FALSE AS is_first
      FROM touched WHERE first IS NOT NULL
    WINDOW earlier AS (PARTITION BY invalidation_id, revision_id ORDER BY first, last
                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), islands AS (
    SELECT *, count(*) FILTER (WHERE is_first) OVER (
                  PARTITION BY invalidation_id, revision_id ORDER BY first, last) AS island
      FROM begins
), scope AS (
    SELECT invalidation_id, revision_id, concat(min(first), '-', max(last)) AS partition_key,
           min(first) AS first, max(last) AS last, NULL::bigint AS cursor_value
      FROM islands GROUP BY invalidation_id, revision_id, island
     UNION ALL
    SELECT invalidation_id, revision_id, partition_key, NULL, NULL, max(cursor_value)
      FROM touched WHERE first IS NULL GROUP BY invalidation_id, revision_id, partition_key
), rewound AS (
    -- What was taken back comes again by cursors that have passed already.
    UPDATE consumer_cursors k SET cursor_value = w.first - 1, advanced_at = now()
      FROM (SELECT c.job_id, c.generation_hash, c.dataset_version,
                   least(min(c.first), min(s.first)) AS first
              FROM consumer c JOIN told i USING (invalidation_id)
              LEFT JOIN scope s USING (invalidation_id, revision_id)
             WHERE i.kind = 'row_range'
             GROUP BY c.job_id, c.generation_hash, c.dataset_version) w
     WHERE k.job_id = w.job_id AND k.generation_hash = w.generation_hash
       AND k.dataset_version = w.dataset_version AND k.cursor_value >= w.first
), wanted AS (
    -- One that waits for the same scope reads this rewrite, too: without this, rewrites that meet
    -- again behind a fork would double at each of them.
    SELECT s.* FROM (
           SELECT s.*, row_number() OVER (
                      PARTITION BY s.revision_id, c.is_rewrite, s.partition_key, s.cursor_value
                      ORDER BY s.invalidation_id) AS n
             FROM scope s JOIN consumer c USING (invalidation_id, revision_id)) s
      JOIN consumer c USING (invalidation_id, revision_id)
     WHERE NOT c.is_rewrite OR (
           s.n = 1
           AND NOT EXISTS (
               SELECT FROM tasks w
                WHERE w.job_id = c.job_id AND w.partition_key = s.partition_key
                  AND w.status = 'Queued' AND w.invalidation_id IS NOT NULL
                  AND NOT w.cancel_requested
                  AND split_part(w.dedupe_key, ':', 3) = c.generation_hash)
           AND NOT EXISTS (
               SELECT FROM job_inputs i
                 JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
                 JOIN tasks w ON w.job_id = c.job_id
                  AND w.dedupe_key = concat_ws(':', i.dataset_uuid,
                          input_generation(i, d), c.generation_hash,
                          'p:' || s.partition_key)
                WHERE i.revision_id = c.revision_id AND w.status = 'Queued'
                  AND NOT w.cancel_requested))
), """ + creation("""
    SELECT new_task(c.org_id, c.job_id, c.revision_id, c.runtime, c.bulk,
                    concat_ws(':', 'i', c.invalidation_id, c.generation_hash,
                              coalesce('p:' || s.partition_key, 'c:' || s.cursor_value)),
                    c.max_attempts, c.max_concurrency, c.timeout_seconds,
                    c.heartbeat_timeout_seconds, c.dataset_uuid, c.dataset_version,
                    s.partition_key, s.first, s.last, s.cursor_value, c.invalidation_id)
      FROM wanted s JOIN consumer c USING (invalidation_id, revision_id)
""")


async def route(conn: Conn, invalidation_ids: list[UUID]) -> list[UUID]:
    """Create the tasks that invalidations ask for, for all consumers in one statement."""
    cursor = await conn.execute(_ROUTE, {"invalidation_ids": invalidation_ids})
    return [row[0] for row in await cursor.fetchall()]


@dataclass(frozen=True)
class Invalid:
    """What a task is to make good."""

    invalidation_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    kind: str
    partition_key: str | None
    range_start: int | None
    range_end: int | None
    filter: dict[str, Any] | None
    reason: str


_GET = """
SELECT invalidation_id, dataset_uuid, dataset_version, kind, partition_key, range_start, range_end,
       filter, reason
  FROM invalidations WHERE invalidation_id = ANY(%(invalidation_ids)s)
"""


async def by_ids(conn: Conn, invalidation_ids: list[UUID]) -> dict[UUID, Invalid]:
    """What these invalidations are about."""
    async with conn.cursor(row_factory=class_row(Invalid)) as cursor:
        await cursor.execute(_GET, {"invalidation_ids": invalidation_ids})
        return {row.invalidation_id: row for row in await cursor.fetchall()}


# Made good by everybody it was given to; what nobody could make good stays to be seen.
_FORGET = """
DELETE FROM invalidations WHERE invalidation_id IN (
    SELECT i.invalidation_id FROM invalidations i
     WHERE i.routed_at IS NOT NULL AND i.made_at < now() - %(older_than)s
       AND NOT EXISTS (SELECT FROM invalidation_consumers c JOIN tasks t USING (task_id)
                        WHERE c.invalidation_id = i.invalidation_id AND c.processed_at IS NULL
                          AND t.status <> 'Canceled')
     ORDER BY i.made_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
"""


async def forget(conn: Conn, *, older_than: timedelta, limit: int) -> int:
    """Delete invalidations that were processed long ago, with who processed them."""
    return (await conn.execute(_FORGET, {"older_than": older_than, "limit": limit})).rowcount


@dataclass(frozen=True)
class InvalidationView:
    """An invalidation as people see it."""

    invalidation_id: UUID
    dataset: str | None
    dag: str
    job: str
    output: str
    kind: str
    partition_key: str | None
    range_start: int | None
    range_end: int | None
    filter: dict[str, Any] | None
    reason: str
    made_by: str
    made_at: datetime
    routed_at: datetime | None
    tasks: int
    processed: int


_LIST = """
SELECT i.invalidation_id, p.name AS dataset, g.name AS dag, j.name AS job,
       w.output_name AS output, i.kind, i.partition_key, i.range_start, i.range_end, i.filter,
       i.reason, i.made_by, i.made_at, i.routed_at,
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
                        AND (%(before)s::timestamptz IS NULL
                             OR (i.made_at, i.invalidation_id) < (%(before)s, %(before_id)s))
                      ORDER BY i.made_at DESC, i.invalidation_id DESC LIMIT %(limit)s) i
 WHERE d.org_id = %(org_id)s AND (%(name)s::text IS NULL OR p.name = %(name)s)
 ORDER BY i.made_at DESC, i.invalidation_id DESC LIMIT %(limit)s
"""


async def listing(
    conn: Conn,
    org_id: UUID,
    *,
    name: str | None,
    after: tuple[datetime, UUID] | None,
    limit: int,
) -> list[InvalidationView]:
    """The newest invalidations, one page, and how far their consumers have got."""
    values = {
        "org_id": org_id,
        "name": name,
        "limit": limit,
        "before": after[0] if after else None,
        "before_id": after[1] if after else None,
    }
    async with conn.cursor(row_factory=class_row(InvalidationView)) as cursor:
        await cursor.execute(_LIST, values)
        return await cursor.fetchall()
