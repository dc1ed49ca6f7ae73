"""Emit events of triggered sources, and route events to the jobs that read their dataset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from trace_etl.model.errors import Conflict, Fault, Invalid, NotFound
from trace_etl.model.scope import Range
from trace_etl.state.db.pool import Conn
from trace_etl.state.routing.outbox import LeasedRow
from trace_etl.state.tasks import retries

_LAST_SECOND = 253_402_300_799  # the end of the year 9999

_FIND_SOURCE = """
SELECT j.job_id, j.revision_id, r.activation, r.source ->> 'kind', o.dataset_uuid,
       o.dataset_version, j.active, r.priority = 'bulk', j.paused_by, j.bulk_paused_by
  FROM dags g JOIN jobs j USING (dag_id) JOIN job_revisions r USING (revision_id)
  JOIN job_outputs o ON o.revision_id = r.revision_id AND o.output_index = 0
 WHERE g.org_id = %(org_id)s AND g.name = %(dag)s AND j.name = %(job)s
"""

_TRIGGER = """
SELECT event_id FROM emit_source_events(
    ARRAY[finished_task(
        %(org_id)s, %(job_id)s, %(revision_id)s, %(bulk)s, %(dedupe_key)s, %(dataset_uuid)s,
        %(dataset_version)s, %(partition_key)s, %(start)s, %(end)s)],
    %(paused)s)
"""
_FIND_LAST_EVENT = """
SELECT event_id FROM events
 WHERE dataset_version = %(dataset_version)s AND range_start <= %(end)s AND range_end >= %(start)s
 ORDER BY accepted_at DESC LIMIT 1
"""
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


@dataclass(frozen=True)
class TriggerResult:
    """The events of a trigger."""

    event_id: UUID
    """The first new event, or the newest one if all blocks were triggered before."""
    ranges: list[Range]
    """The blocks of the range that were not triggered before: one new event each."""
    retried: int
    """Failed tasks of blocks that were triggered before. They are retried."""
    deferred_by: str | None
    """The user or queue that paused the source. The events are routed when the source resumes."""


async def trigger(
    conn: Conn,
    org_id: UUID,
    dag: str,
    job: str,
    span: Range,
    *,
    bulk: bool = False,
    kinds: Sequence[str] = ("manual", "cron"),
) -> TriggerResult:
    """Emit the events of a source for a range: one for each part that was not triggered before.

    Failed tasks of the other parts are retried. Raises NotFound, Conflict.
    """
    row = await (
        await conn.execute(_FIND_SOURCE, {"org_id": org_id, "dag": dag, "job": job})
    ).fetchone()
    if row is None or not row[6]:
        raise NotFound(f"no job {job!r} in a deployed DAG {dag!r}; `trace dags` lists them")
    job_id, revision_id, activation, kind, dataset_uuid, dataset_version, _, is_bulk = row[:8]
    if activation != "source" or kind not in kinds:
        raise Conflict(f"job {job!r} cannot be triggered: it is not a {' or '.join(kinds)} source")
    if kind == "cron" and span.end > _LAST_SECOND:
        message = f"a tick is a time in seconds since 1970, at most {_LAST_SECOND}, not {span.end}"
        raise Invalid([Fault("start" if span.start > _LAST_SECOND else "end", message)])
    deferred_by = row[8] or (row[9] if bulk or is_bulk else None)
    values = {
        "org_id": org_id,
        "job_id": job_id,
        "revision_id": revision_id,
        "bulk": bulk or is_bulk,
        "paused": deferred_by is not None,
        "dataset_uuid": dataset_uuid,
        "dataset_version": dataset_version,
    }
    new = await find_new_ranges(conn, dataset_version, span)
    emitted = {piece: await _emit_event(conn, values, piece) for piece in new}
    event_ids = [event_id for event_id in emitted.values() if event_id]
    retried = 0 if new == [span] else await retries.retry_downstream(conn, job_id, span)
    event_id = event_ids[0] if event_ids else await _find_last_event(conn, values, span)
    created = [piece for piece, event_id in emitted.items() if event_id]
    return TriggerResult(event_id, created, retried, deferred_by)


async def _emit_event(conn: Conn, source: Mapping[str, object], span: Range) -> UUID | None:
    """Emit the event of a range. Returns None if retention deleted the event of an earlier trigger."""
    key = f"trigger:{source['dataset_version']}:{span.key}"
    scope = {"partition_key": span.key, "start": span.start, "end": span.end}
    row = await (await conn.execute(_TRIGGER, {**source, **scope, "dedupe_key": key})).fetchone()
    return row[0] if row else None


async def _find_last_event(conn: Conn, source: Mapping[str, object], span: Range) -> UUID:
    values = {**source, "start": span.start, "end": span.end}
    row = await (await conn.execute(_FIND_LAST_EVENT, values)).fetchone()
    if row is None:
        raise NotFound(f"{span.key} was triggered before, but its event has been deleted")
    return row[0]


# Creates one task per consumer and scope, with its wake-up, in one statement. Routing an event again
# creates nothing, because its tasks exist.
#
# An edge inside a DAG reads one generation, an edge across DAGs the current one. So an upstream
# generation that a deploy does not change triggers both the live revision and the one being built. A
# generation that is being built triggers only the revision being built. A retired generation triggers none.
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
           e.event_id, e.org_id, c.job_id, c.revision_id, c.runtime, w.bulk, e.dataset_uuid,
           concat_ws(':', e.dataset_uuid, e.dataset_version, c.generation_hash, e.scope_key) AS dedupe_key,
           e.dataset_version, e.partition_key, e.range_start, e.range_end, e.cursor_value,
           c.max_attempts, c.max_concurrency, c.timeout_seconds, c.heartbeat_timeout_seconds,
           is_paused(c.job, w.bulk) AS is_paused
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
           SELECT new_task(
                      org_id, job_id, revision_id, runtime, bulk, dedupe_key, max_attempts,
                      max_concurrency, timeout_seconds, heartbeat_timeout_seconds, dataset_uuid,
                      dataset_version, partition_key, range_start, range_end, cursor_value)
             FROM wanted WHERE NOT is_paused))
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
