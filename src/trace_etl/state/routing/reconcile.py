"""Compare the data of producers with the tasks of their consumers, a bounded batch at a time."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from trace_etl.state.db.pool import Conn

_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended('reconciler', 0))"


async def try_lock(conn: Conn) -> bool:
    """Lock reconciling until commit. Returns False if another replica holds the lock."""
    row = await (await conn.execute(_TRY_LOCK)).fetchone()
    return bool(row and row[0])


async def read_horizon(conn: Conn) -> str:
    """Return a transaction id before which every transaction has ended."""
    row = await (
        await conn.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text")
    ).fetchone()
    return row[0] if row else "0"


@dataclass(frozen=True)
class Comparison:
    """The result of one comparison: partitions compared and tasks created."""

    partitions: int
    tasks: int


# Each edge stores the last partition that was compared, in commit order, so a call reads only new
# partitions. The same transaction creates the missing tasks and moves this mark. A partition needs no
# task if an output was already made from it, or if its event is deferred until the consumer resumes.
_COMPARE = """
WITH edge AS MATERIALIZED (
    SELECT DISTINCT ON (c.revision_id, c.dataset_version)
           c.*, coalesce(m.commit_xid, '0'::xid8) AS mark_xid,
           coalesce(m.partition_key, '') AS mark_key
      FROM consumers c
      JOIN jobs j ON j.job_id = c.job_id
      LEFT JOIN reconciled_edges m ON m.job_id = c.job_id
       AND m.generation_hash = c.generation_hash AND m.dataset_version = c.dataset_version
     WHERE NOT is_paused(j, c.bulk) AND c.is_first AND c.reads
), behind AS MATERIALIZED (
    -- The lateral join probes the index once per edge. A semi join would read every partition.
    SELECT e.* FROM edge e CROSS JOIN LATERAL (
           SELECT FROM partitions p
            WHERE p.dataset_version = e.dataset_version
              AND (p.commit_xid, p.partition_key) > (e.mark_xid, e.mark_key)
              AND p.commit_xid < %(horizon)s::xid8
            ORDER BY p.commit_xid, p.partition_key LIMIT 1) is_new
     LIMIT %(edges)s
), batch AS MATERIALIZED (
    SELECT b.*, p.partition_key, p.range_start, p.range_end, p.commit_xid,
           concat_ws(':', b.dataset_uuid, b.dataset_version, b.generation_hash,
                     'p:' || p.partition_key) AS dedupe_key,
           CASE WHEN b.is_whole THEN 'all' ELSE p.partition_key END AS task_key,
           CASE WHEN NOT b.is_whole THEN p.range_start END AS task_start,
           CASE WHEN NOT b.is_whole THEN p.range_end END AS task_end
      FROM behind b CROSS JOIN LATERAL (
           SELECT partition_key, range_start, range_end, commit_xid FROM partitions p
            WHERE p.dataset_version = b.dataset_version
              AND (p.commit_xid, p.partition_key) > (b.mark_xid, b.mark_key)
              AND p.commit_xid < %(horizon)s::xid8
            ORDER BY p.commit_xid, p.partition_key LIMIT %(limit)s) p
), missing AS (
    SELECT s.is_whole,
           new_task(s.org_id, s.job_id, s.revision_id, s.runtime, s.bulk, s.dedupe_key,
                    s.max_attempts, s.max_concurrency, s.timeout_seconds,
                    s.heartbeat_timeout_seconds, s.dataset_uuid, s.dataset_version,
                    s.task_key, s.task_start, s.task_end) AS task
      FROM batch s
     WHERE (NOT s.is_whole OR NOT is_refreshed(s.job_id, s.revision_id, s.generation_hash, 'all',
                                               s.commit_xid))
       AND NOT EXISTS (SELECT FROM tasks t
                        WHERE t.job_id = s.job_id AND t.dedupe_key = s.dedupe_key)
       AND NOT EXISTS (
           SELECT FROM events e
            WHERE e.dataset_version = s.dataset_version AND e.scope_key = 'p:' || s.partition_key
              AND EXISTS (SELECT FROM deferred_events d
                           WHERE d.event_id = e.event_id AND d.job_id = s.job_id)
           OFFSET 0)  -- prevents an anti join, which would read every event
       AND NOT EXISTS (
           SELECT FROM partition_inputs l
             JOIN job_outputs o
               ON o.revision_id = s.revision_id AND o.dataset_version = l.dataset_version
             JOIN partitions q ON q.dataset_version = l.dataset_version
              AND q.partition_key = l.partition_key AND q.task_id = l.task_id
            WHERE l.input_version = s.dataset_version AND l.input_key = s.partition_key)
), moved AS (
    INSERT INTO reconciled_edges AS m (job_id, generation_hash, dataset_version, commit_xid,
                                       partition_key)
    SELECT DISTINCT ON (job_id, generation_hash, dataset_version)
           job_id, generation_hash, dataset_version, commit_xid, partition_key
      FROM batch
     ORDER BY job_id, generation_hash, dataset_version, commit_xid DESC, partition_key DESC
    ON CONFLICT (job_id, generation_hash, dataset_version) DO UPDATE
       SET commit_xid = EXCLUDED.commit_xid, partition_key = EXCLUDED.partition_key
), refreshed AS (
    SELECT task_id, runtime FROM request_refreshes(ARRAY(SELECT task FROM missing WHERE is_whole))
)
SELECT (SELECT count(*) FROM batch),
       (SELECT count(*) FROM create_tasks(ARRAY(SELECT task FROM missing WHERE NOT is_whole)))
       + (SELECT count(*) FROM enqueue(ARRAY(
              SELECT wake_entry(task_id, runtime) FROM refreshed)))
"""


async def compare_partitions(
    conn: Conn, *, horizon: str, edges: int = 20, limit: int = 500
) -> Comparison:
    """Create the missing tasks of consumers for the next partitions committed before the horizon."""
    values = {"horizon": horizon, "edges": edges, "limit": limit}
    row = await (await conn.execute(_COMPARE, values)).fetchone()
    return Comparison(row[0], row[1]) if row else Comparison(0, 0)


# An event's time is the start of its transaction. A new event cannot be older than the oldest running
# transaction, so older events are complete and each event is read once.
_TAKE_EVENTS = """
WITH mark AS (
    SELECT accepted_at FROM reconciled_events
), settled AS (
    SELECT least(now() - %(grace)s, (
               SELECT min(a.xact_start) FROM pg_stat_activity a
                WHERE a.datname = current_database() AND a.pid <> pg_backend_pid())) AS at
), upto AS (
    SELECT max(e.accepted_at) AS at FROM (
        SELECT e.accepted_at FROM events e
         WHERE e.accepted_at > (SELECT accepted_at FROM mark)
           AND e.accepted_at < (SELECT at FROM settled)
         ORDER BY e.accepted_at LIMIT %(limit)s) e
), moved AS (
    UPDATE reconciled_events SET accepted_at = upto.at FROM upto WHERE upto.at IS NOT NULL
)
SELECT count(*), coalesce(array_agg(e.event_id) FILTER (
           WHERE e.routed_at IS NULL  -- and not deferred: the resumed consumer gets a deferred event
             AND NOT EXISTS (SELECT FROM deferred_events d WHERE d.event_id = e.event_id)), '{}')
  FROM events e
 WHERE e.accepted_at > (SELECT accepted_at FROM mark) AND e.accepted_at <= (SELECT at FROM upto)
"""


async def take_events(conn: Conn, *, grace: timedelta, limit: int) -> tuple[int, list[UUID]]:
    """Read the next events. Returns how many were read, and those that were not routed."""
    row = await (await conn.execute(_TAKE_EVENTS, {"grace": grace, "limit": limit})).fetchone()
    return (row[0], row[1]) if row else (0, [])


_LIST_UNROUTED = """
SELECT invalidation_id FROM invalidations
 WHERE routed_at IS NULL AND made_at < now() - %(grace)s
 ORDER BY made_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""


async def list_unrouted_invalidations(conn: Conn, *, grace: timedelta, limit: int) -> list[UUID]:
    """List and lock invalidations that were not routed in time."""
    cursor = await conn.execute(_LIST_UNROUTED, {"grace": grace, "limit": limit})
    return [row[0] for row in await cursor.fetchall()]
