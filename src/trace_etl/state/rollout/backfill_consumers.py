"""Backfill consumers: create tasks for everything that their inputs already hold."""

from typing import Any, LiteralString
from uuid import UUID

from trace_etl.state.db.pool import Conn, forbid_table_scans

# If the input of a scope changed after its task completed, the scope gets a second task with another
# key. The wake-ups of many tasks are spread over time, so that they do not delay other work.
_BACKFILL = """
WITH consumer AS (
    SELECT * FROM consumer_inputs WHERE revision_id = ANY(%(revision_ids)s)
     UNION ALL
    SELECT * FROM consumer_inputs
     WHERE NOT is_inside_dag AND dataset_uuid = ANY(%(dataset_uuids)s)
), wanted AS (
    SELECT DISTINCT ON (c.revision_id, c.dataset_version, s.scope_key) c.*, s.*,
           concat_ws(':', c.dataset_uuid, c.dataset_version, c.generation_hash, s.scope_key) AS key,
           c.execution_strategy = 'WholeDataset' AS is_whole
      FROM consumer c
     CROSS JOIN LATERAL generation_scopes(
           c.dataset_version, c.execution_strategy, %(only_recent)s) s
     ORDER BY c.revision_id, c.dataset_version, s.scope_key
), task AS (
    SELECT w.is_whole AND w.reads AS is_refresh, with_parameters(
                  new_task(w.org_id, w.job_id, w.revision_id, w.runtime, true,
                           CASE WHEN done.started_at < w.changed_at
                                THEN concat(w.key, ':',
                                            (extract(epoch FROM w.changed_at) * 1000000)::bigint)
                                ELSE w.key END,
                           w.max_attempts, w.max_concurrency, w.timeout_seconds,
                           w.heartbeat_timeout_seconds, w.dataset_uuid, w.dataset_version,
                           CASE WHEN w.is_whole THEN 'all' ELSE w.partition_key END,
                           CASE WHEN NOT w.is_whole THEN w.range_start END,
                           CASE WHEN NOT w.is_whole THEN w.range_end END,
                           CASE WHEN NOT w.is_whole THEN w.cursor_value END), w.parameters) AS task
      FROM wanted w LEFT JOIN tasks done ON done.job_id = w.job_id
       AND done.dedupe_key = w.key AND done.status = 'Completed'
     ORDER BY w.range_start, w.partition_key
), created AS (
    SELECT task_id, runtime FROM insert_tasks(ARRAY(SELECT task FROM task WHERE NOT is_refresh))
     UNION ALL
    SELECT task_id, runtime
      FROM request_refreshes(ARRAY(SELECT task FROM task WHERE is_refresh))
)
SELECT count(*) FROM enqueue(ARRAY(
    SELECT wake_entry(task_id, runtime, make_interval(
               secs => greatest(0, row_number() OVER () - 500) / 5000.0))
      FROM created))
"""


async def backfill(conn: Conn, revision_ids: list[UUID], *, only_recent: bool = False) -> int:
    """Create tasks of revisions for everything that their inputs hold. Returns the number created.

    Call it in the transaction that moves pointers, and again with `only_recent` after the commit: an
    event that was accepted before the commit was routed by the old pointers. The reconciler does the
    same for partitions.
    """
    values = {"revision_ids": revision_ids, "dataset_uuids": [], "only_recent": only_recent}
    return await _count(conn, _BACKFILL, values)


async def backfill_readers(
    conn: Conn, dataset_uuids: list[UUID], *, only_recent: bool = False
) -> int:
    """Backfill consumers in other DAGs of datasets whose current generation changed."""
    values = {"revision_ids": [], "dataset_uuids": dataset_uuids, "only_recent": only_recent}
    return await _count(conn, _BACKFILL, values)


# What started a source is in the past, so its old events are copied. An always-on source runs again.
_EMIT_AGAIN = """
WITH emitted AS (
    INSERT INTO events (org_id, dataset_uuid, dataset_version, scope_key, partition_key,
                        range_start, range_end, cursor_value, producer_task_id, attempt, parameters)
    SELECT e.org_id, fresh.dataset_uuid, fresh.dataset_version, e.scope_key, e.partition_key,
           e.range_start, e.range_end, e.cursor_value, e.producer_task_id, e.attempt, e.parameters
      FROM job_revisions r JOIN jobs j USING (job_id)
      JOIN job_outputs fresh ON fresh.revision_id = r.revision_id AND fresh.output_index = 0
      JOIN job_outputs old ON old.revision_id IN (j.revision_id, j.building_revision_id)
       AND old.output_index = 0 AND old.dataset_version <> fresh.dataset_version
      JOIN events e ON e.dataset_version = old.dataset_version
     WHERE r.revision_id = ANY(%(revision_ids)s) AND r.activation = 'source'
       AND r.source ->> 'kind' <> 'always_on' AND NOT is_past_tick(e)
    ON CONFLICT ON CONSTRAINT events_once DO NOTHING
    RETURNING event_id, producer_task_id, dataset_uuid, scope_key
), held AS (
    -- The copy of an event that waits until its source resumes waits too.
    INSERT INTO deferred_events (event_id, job_id, bulk)
    SELECT n.event_id, d.job_id, d.bulk
      FROM emitted n
      JOIN events e ON e.producer_task_id = n.producer_task_id AND e.dataset_uuid = n.dataset_uuid
       AND e.scope_key = n.scope_key
      JOIN deferred_events d ON d.event_id = e.event_id
      JOIN tasks t ON t.task_id = e.producer_task_id AND t.job_id = d.job_id
    ON CONFLICT DO NOTHING
    RETURNING event_id
)
SELECT count(*) FROM enqueue(ARRAY(
    SELECT outbox_entry('route_event', event_id) FROM emitted
     WHERE event_id NOT IN (SELECT event_id FROM held)))
"""


async def emit_again(conn: Conn, revision_ids: list[UUID]) -> int:
    """Copy events to the given revisions of sources that do not run all the time.

    The events are those of the revisions that their jobs point at: call it after a deploy has set the
    pointers, and before a rollback moves them.
    """
    return await _count(conn, _EMIT_AGAIN, {"revision_ids": revision_ids})


_BOOTSTRAP = """
SELECT count(*) FROM emit_source_events(ARRAY(
    SELECT finished_task(j.org_id, j.job_id, o.revision_id, false,
                         concat('trigger:', o.dataset_version, ':', k.partition_key),
                         o.dataset_uuid, o.dataset_version, k.partition_key, a.range_start,
                         a.range_end)
      FROM unnest(%(job_ids)s::uuid[], %(starts)s::bigint[], %(ends)s::bigint[])
           AS a (job_id, range_start, range_end)
     CROSS JOIN LATERAL (SELECT concat(a.range_start, '-', a.range_end) AS partition_key) k
      JOIN jobs j USING (job_id)
      JOIN job_outputs o ON o.revision_id = coalesce(j.building_revision_id, j.revision_id)
       AND o.output_index = 0))
"""


async def bootstrap(conn: Conn, ranges: list[tuple[UUID, int, int]]) -> int:
    """Emit the bootstrap ranges of sources once. A range is a job, a first and a last block."""
    values = {
        "job_ids": [job_id for job_id, _, _ in ranges],
        "starts": [start for _, start, _ in ranges],
        "ends": [end for _, _, end in ranges],
    }
    return await _count(conn, _BOOTSTRAP, values)


async def _count(conn: Conn, query: LiteralString, values: dict[str, Any]) -> int:
    await forbid_table_scans(conn)
    row = await (await conn.execute(query, values)).fetchone()
    return row[0] if row else 0
