"""Route events to the jobs that read their dataset."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from trace_etl.model.scope import Range
from trace_etl.state.db.pool import Conn
from trace_etl.state.routing.outbox import LeasedRow

# Waits for other triggers and splits of this dataset version, so that two of them never emit the same blocks.
_LOCK_VERSION = "SELECT pg_advisory_xact_lock(hashtextextended(%(dataset_version)s::text, 0))"
_FIND_NEW_RANGES = """
SELECT lower(new.blocks), upper(new.blocks) - 1
  FROM unnest(int8multirange(int8range(%(start)s, %(end)s, '[]')) - coalesce((
              SELECT range_agg(int8range(range_start, range_end, '[]')) FROM events
               WHERE dataset_version = %(dataset_version)s
                 AND range_start <= %(end)s AND range_end >= %(start)s), '{}')) AS new (blocks)
 ORDER BY 1
"""


async def find_new_ranges(conn: Conn, dataset_version: UUID, span: Range) -> list[Range]:
    """Return the blocks of a range for which a dataset version has no event yet, as few ranges as possible.

    Other callers for the same dataset version wait until this transaction ends.
    """
    values = {"dataset_version": dataset_version, "start": span.start, "end": span.end}
    await conn.execute(_LOCK_VERSION, values)
    rows = await (await conn.execute(_FIND_NEW_RANGES, values)).fetchall()
    return [Range(start, end) for start, end in rows]


# Creates one task per consumer and scope, with its wake-up, in one statement. Routing an event again
# creates nothing, because its tasks exist.
#
# An edge inside a DAG reads one generation, an edge across DAGs the current one. So an upstream
# generation that a deploy does not change triggers both the live revision and the one being built. A
# generation that is being built triggers only the revision being built. A retired generation triggers none.
#
# The outputs of one task are committed together, so their events start one task: the task of the first input
# from that producer. A job over whole datasets is refreshed instead of getting a task per scope, unless the
# event is a trigger, such as a tick: each of these has its task.
#
# The event of a paused job is deferred: the job gets its tasks when it resumes. If the producer is a bulk
# task of a job with normal priority (a backfill, a rebuild), the tasks downstream are bulk too.
#
# With `hold`, the caller sends the wake-ups itself. The outbox sends them after that time if the caller
# has not deleted them.
_ROUTE = """
WITH event AS (
    UPDATE events e SET routed_at = now()
      FROM datasets d
     WHERE e.event_id = ANY(%(event_ids)s) AND d.dataset_uuid = e.dataset_uuid
       AND e.dataset_version IN (d.dataset_version, d.building_version)
    RETURNING e.*, d.dataset_version AS current_version
), wanted AS (
    SELECT DISTINCT ON (c.revision_id, e.event_id)
           e.event_id, is_paused(c.job, w.bulk) AS is_paused, w.bulk, c.job_id,
           c.is_whole AND c.reads AS is_refresh,
           with_parameters(new_task(
               e.org_id, c.job_id, c.revision_id, c.runtime, w.bulk,
               concat_ws(':', c.trigger_dataset, c.trigger_version, c.generation_hash, e.scope_key),
               c.max_attempts, c.max_concurrency, c.timeout_seconds, c.heartbeat_timeout_seconds,
               c.trigger_dataset, c.trigger_version,
               CASE WHEN c.is_whole THEN 'all' ELSE e.partition_key END,
               CASE WHEN NOT c.is_whole THEN e.range_start END,
               CASE WHEN NOT c.is_whole THEN e.range_end END,
               CASE WHEN NOT c.is_whole THEN e.cursor_value END), e.parameters) AS task
      FROM event e
      JOIN reactive_inputs c ON c.dataset_uuid = e.dataset_uuid AND c.org_id = e.org_id
       AND coalesce(c.dataset_version, e.current_version) = e.dataset_version
      LEFT JOIN tasks p ON p.task_id = e.producer_task_id
      LEFT JOIN job_revisions pr ON pr.revision_id = p.revision_id
     CROSS JOIN LATERAL (SELECT c.is_bulk OR (p.bulk AND pr.priority <> 'bulk') IS TRUE) w (bulk)
), deferred AS (
    INSERT INTO deferred_events (event_id, job_id, bulk)
    SELECT event_id, job_id, bulk FROM wanted WHERE is_paused ON CONFLICT DO NOTHING
), created AS (
    SELECT task_id, runtime, bulk, job_id FROM insert_tasks(ARRAY(
           SELECT task FROM wanted WHERE NOT is_paused AND NOT is_refresh))
     UNION ALL
    SELECT task_id, runtime, bulk, job_id FROM request_refreshes(ARRAY(
           SELECT task FROM wanted WHERE NOT is_paused AND is_refresh))
), woken AS (
    SELECT outbox_id, kind, target, subject FROM enqueue(ARRAY(
           SELECT CASE runtime WHEN 'dispatcher' THEN wake_entry(task_id, runtime)
                  ELSE wake_entry(task_id, runtime, %(hold)s, %(tries)s) END
             FROM created))
), performed AS (
    DELETE FROM outbox WHERE outbox_id = ANY(%(performed)s::bigint[])
)
SELECT subject AS task_id, outbox_id, target, NULL AS bulk, NULL AS job_id
  FROM woken WHERE kind = 'wake_up'
 UNION ALL
SELECT task_id, NULL, NULL, bulk, job_id FROM created
"""


@dataclass(frozen=True)
class RoutedEvents:
    """The tasks that routing created, and the wake-ups that the caller holds."""

    task_ids: list[UUID]
    wake_ups: list[LeasedRow]


async def route(
    conn: Conn,
    event_ids: list[UUID],
    *,
    performed: Sequence[int] = (),
    hold: timedelta = timedelta(),
) -> RoutedEvents:
    """Create the tasks that events trigger. An event of a retired generation creates none.

    Deletes the `performed` outbox rows, which requested this routing. With `hold`, the caller sends the
    wake-ups of the new tasks within that time, as if it had leased them from the outbox.
    """
    values = {
        "event_ids": event_ids,
        "performed": list(performed),
        "hold": hold,
        "tries": 1 if hold else 0,
    }
    rows = await (await conn.execute(_ROUTE, values)).fetchall()
    created = {task_id: kind for task_id, outbox_id, _, *kind in rows if outbox_id is None}
    wake_ups = [
        LeasedRow(outbox_id, "wake_up", target, task_id, None, 1, *created[task_id])
        for task_id, outbox_id, target, *_ in rows
        if outbox_id is not None
    ]
    return RoutedEvents(list(created), sorted(wake_ups, key=lambda row: row.outbox_id))
