"""`Running → Completed | Failed | Canceled`: many completions, one statement, one commit."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, LiteralString, NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.model.task import Fence
from trace_etl.state.db.pool import Conn, rows_as_json


@dataclass(frozen=True)
class NewEvent:
    """An event about to be recorded. Without a version, the dataset's current one is meant."""

    dataset_uuid: UUID
    dataset_version: UUID | None
    scope_key: str
    partition_key: str | None
    range_start: int | None
    range_end: int | None
    cursor_value: int | None


class Completion(NamedTuple):
    """What a worker says of its attempt."""

    fence: Fence
    status: str
    content_hash: bytes
    error_code: str | None = None
    error_message: str | None = None
    retry_after: timedelta | None = None
    """Delay before the next attempt, if any remains; None: the failure is final."""
    events: Sequence[NewEvent] = ()

    @property
    def plain(self) -> bool:
        """Success, and nothing more to say."""
        said = self.events or self.error_code is not None or self.error_message is not None
        return self.status == "Completed" and not said


# By primary key, as for claims: the `||` has the planner expect one completion, not a hundred.
_WANT: LiteralString = """
      FROM json_to_recordset(%(completions)s::json) AS w (
           task_id uuid, attempt int, lease_token uuid, status text, content_hash text,
           error_code text, error_message text, retry_seconds float8)
     WHERE t.task_id = w.task_id AND t.attempt = w.attempt AND t.lease_token = w.lease_token
       AND w.status || '' = w.status
"""
_HISTORY: LiteralString = """
    INSERT INTO task_attempts (task_id, attempt, worker_id, started_at, outcome, error_code,
                               error_message)
    SELECT task_id, attempt, worker_id, started_at, status, error_code, error_message FROM done
    ON CONFLICT (task_id, attempt) DO UPDATE
        SET outcome = EXCLUDED.outcome, error_code = EXCLUDED.error_code,
            error_message = EXCLUDED.error_message, ended_at = now()
"""

# What most tasks need and no more. A task that something else depends on (a cursor, an
# invalidation, room under a cap), or that was reaped, is not touched: it needs the whole statement.
_COMPLETE_PLAIN = (
    """
WITH done AS (
    UPDATE tasks t
       SET status = 'Completed', completion_hash = decode(w.content_hash, 'hex'),
           error_code = NULL, error_message = NULL, finished_at = now()
"""
    + _WANT
    + """
       AND t.status || '' = 'Running' AND t.cursor_value IS NULL AND t.invalidation_id IS NULL
       AND t.max_concurrency IS NULL
    RETURNING t.task_id, t.attempt, t.worker_id, t.started_at, t.status, t.error_code,
              t.error_message
), history AS ("""
    + _HISTORY
    + """
)
SELECT task_id, status FROM done
"""
)

# A reaped attempt (Failed, with a cause) may still be completed: its lease is on the row until the
# next attempt starts. The `||` keeps the planner to the primary key, whatever else runs or failed.
_COMPLETE = (
    """
WITH done AS (
    UPDATE tasks t
       SET status = CASE WHEN w.status = 'Failed' AND t.cancel_requested THEN 'Canceled'
                         ELSE w.status END,
           completion_hash = decode(w.content_hash, 'hex'), cause = NULL,
           error_code = w.error_code, error_message = w.error_message,
           (finished_at, retry_at) = (
               SELECT CASE WHEN due IS NULL THEN now() END, due
                 FROM (SELECT next_attempt_at(t.attempt, t.max_attempts, t.cancel_requested,
                                              make_interval(secs => w.retry_seconds)) AS due) next)
"""
    + _WANT
    + """
       AND (t.status || '' = 'Running'
            OR (t.cause IS NOT NULL AND t.status || '' IN ('Failed', 'Canceled')))
    RETURNING t.task_id, t.attempt, t.org_id, t.job_id, t.worker_id, t.started_at, t.status,
              t.error_code, t.error_message, t.max_concurrency, t.revision_id, t.dataset_uuid,
              t.dataset_version, t.cursor_value, t.invalidation_id, t.pinned_snapshot
), history AS ("""
    + _HISTORY
    + """
), happened AS (
    INSERT INTO events (org_id, dataset_uuid, dataset_version, scope_key, partition_key,
                        range_start, range_end, cursor_value, producer_task_id, attempt)
    SELECT done.org_id, d.dataset_uuid, coalesce(e.dataset_version, d.dataset_version),
           e.scope_key, e.partition_key, e.range_start, e.range_end, e.cursor_value,
           done.task_id, done.attempt
      FROM json_to_recordset(%(events)s::json) AS e (
           task_id uuid, dataset_uuid uuid, dataset_version uuid, scope_key text,
           partition_key text, range_start bigint, range_end bigint, cursor_value bigint)
      JOIN done ON done.task_id = e.task_id AND done.status = 'Completed'
      JOIN datasets d ON d.dataset_uuid = e.dataset_uuid
    ON CONFLICT ON CONSTRAINT events_once DO NOTHING
    RETURNING event_id
), enqueued AS (
    SELECT count(*) FROM enqueue(ARRAY(
           SELECT outbox_entry('route_event', event_id) FROM happened
            UNION ALL
           -- The attempt made room under a concurrency cap: wake a task that waits for it.
           SELECT outbox_entry('wake_next', job_id) FROM done WHERE max_concurrency IS NOT NULL))
), advanced AS (
    -- Also when nothing matched: what was read need not be read again.
    INSERT INTO consumer_cursors AS c (job_id, generation_hash, dataset_uuid, dataset_version,
                                       cursor_value, task_id)
    SELECT DISTINCT ON (done.job_id, r.generation_hash, done.dataset_version)
           done.job_id, r.generation_hash, done.dataset_uuid, done.dataset_version,
           done.cursor_value, done.task_id
      FROM done JOIN job_revisions r ON r.revision_id = done.revision_id
     WHERE done.cursor_value IS NOT NULL AND done.status = 'Completed'
       AND done.dataset_version IS NOT NULL
       -- Unless some of it was taken back: that is still to come, and to be read.
       AND done.invalidation_id IS NULL
       AND NOT EXISTS (
           SELECT FROM invalidations i
            WHERE i.dataset_version = done.dataset_version AND i.kind = 'row_range'
              AND i.made_xid >= pg_snapshot_xmin(done.pinned_snapshot)
              AND NOT pg_visible_in_snapshot(i.made_xid, done.pinned_snapshot)
              AND i.range_start <= done.cursor_value)
     ORDER BY done.job_id, r.generation_hash, done.dataset_version, done.cursor_value DESC
    ON CONFLICT (job_id, generation_hash, dataset_version) DO UPDATE
       SET cursor_value = EXCLUDED.cursor_value, task_id = EXCLUDED.task_id, advanced_at = now()
     WHERE c.cursor_value < EXCLUDED.cursor_value
), processed AS (
    UPDATE invalidation_consumers c SET processed_at = now()
      FROM done
     WHERE done.invalidation_id IS NOT NULL AND done.status = 'Completed'
       AND c.invalidation_id = done.invalidation_id AND c.task_id = done.task_id
)
SELECT task_id, status FROM done CROSS JOIN enqueued
"""
)


async def complete_plain(conn: Conn, completions: list[Completion]) -> dict[UUID, str]:
    """End attempts that succeeded and have nothing to tell. What it leaves is for `complete`."""
    values = {"completions": rows_as_json([_completion_row(c) for c in _in_order(completions)])}
    return dict(await conn.rows(_COMPLETE_PLAIN, values, tuple))


async def complete(conn: Conn, completions: list[Completion]) -> dict[UUID, str]:
    """End attempts, record their events and ask for the routing. Losers have no entry.

    At most one completion of a task per call: the caller keeps them apart.
    """
    cursor = await conn.execute(
        _COMPLETE,
        {
            "completions": rows_as_json([_completion_row(c) for c in _in_order(completions)]),
            "events": _events_as_json((c.fence, c.events) for c in completions if c.events),
        },
    )
    return dict(await cursor.fetchall())


def _in_order(completions: list[Completion]) -> list[Completion]:
    """Rows are locked in the order of their ids: two batches with common tasks cannot deadlock."""
    return sorted(completions, key=lambda c: c.fence.task_id)


def _completion_row(c: Completion) -> dict[str, Any]:
    return {
        "task_id": c.fence.task_id,
        "attempt": c.fence.attempt,
        "lease_token": c.fence.lease_token,
        "status": c.status,
        "content_hash": c.content_hash.hex(),
        "error_code": c.error_code,
        "error_message": c.error_message,
        "retry_seconds": c.retry_after.total_seconds() if c.retry_after else None,
    }


def _events_as_json(given: Iterable[tuple[Fence, Sequence[NewEvent]]]) -> str:
    return rows_as_json(
        [
            {
                "task_id": fence.task_id,
                "dataset_uuid": e.dataset_uuid,
                "dataset_version": e.dataset_version,
                "scope_key": e.scope_key,
                "partition_key": e.partition_key,
                "range_start": e.range_start,
                "range_end": e.range_end,
                "cursor_value": e.cursor_value,
            }
            for fence, events in given
            for e in events
        ]
    )


# A cursor that comes again after its producer took blocks before it back is news. The events of a
# source that runs all the time are routed when it goes on, as those of any paused source.
_RECORD_EVENTS = """
WITH producer AS (
    SELECT t.task_id, t.attempt, t.org_id, t.job_id, t.bulk,
           t.dedupe_key LIKE 'always_on:%%'
               AND (j.paused_at IS NOT NULL OR (t.bulk AND j.bulk_paused_at IS NOT NULL)) AS held
      FROM tasks t JOIN jobs j USING (job_id)
     WHERE t.task_id = %(task_id)s AND t.attempt = %(attempt)s AND t.lease_token = %(lease_token)s
       AND t.status = 'Running'
       FOR UPDATE OF t
), happened AS (
    INSERT INTO events (org_id, dataset_uuid, dataset_version, scope_key, partition_key,
                        range_start, range_end, cursor_value, producer_task_id, attempt)
    SELECT p.org_id, d.dataset_uuid, coalesce(e.dataset_version, d.dataset_version),
           CASE WHEN e.cursor_value IS NULL THEN e.scope_key
                ELSE concat(e.scope_key, (
                     -- Not their number: old ones are forgotten.
                     SELECT '@' || max(i.made_xid::text::bigint) FROM invalidations i
                      WHERE i.task_id = p.task_id AND i.dataset_version = e.dataset_version
                        AND i.range_start <= e.cursor_value)) END,
           e.partition_key, e.range_start, e.range_end, e.cursor_value, p.task_id, p.attempt
      FROM json_to_recordset(%(events)s::json) AS e (
           dataset_uuid uuid, dataset_version uuid, scope_key text, partition_key text,
           range_start bigint, range_end bigint, cursor_value bigint)
      JOIN datasets d ON d.dataset_uuid = e.dataset_uuid
     CROSS JOIN producer p
    ON CONFLICT ON CONSTRAINT events_once DO NOTHING
    RETURNING event_id
), enqueued AS (
    SELECT count(*) FROM enqueue(ARRAY(
           SELECT outbox_entry('route_event', event_id)
             FROM happened CROSS JOIN producer p WHERE NOT p.held))
), deferred AS (
    INSERT INTO deferred_events (event_id, job_id, bulk)
    SELECT event_id, p.job_id, p.bulk FROM happened CROSS JOIN producer p WHERE p.held
)
SELECT (SELECT count(*) FROM producer), (SELECT count(*) FROM happened) FROM enqueued
"""


async def record_events(conn: Conn, fence: Fence, events: list[NewEvent]) -> int | None:
    """Record events of a running attempt. Returns how many were new; None: the fence is stale."""
    cursor = await conn.execute(
        _RECORD_EVENTS,
        {
            "task_id": fence.task_id,
            "attempt": fence.attempt,
            "lease_token": fence.lease_token,
            "events": _events_as_json([(fence, events)]),
        },
    )
    row = await cursor.fetchone()
    return row[1] if row and row[0] else None


@dataclass(frozen=True)
class FenceState:
    """What the database holds against a fence that was refused."""

    task_id: UUID
    status: str
    attempt: int
    lease_token: UUID | None
    completion_hash: bytes | None


_FENCE_STATE = """
SELECT task_id, status, attempt, lease_token, completion_hash
  FROM tasks WHERE task_id = ANY(%(task_ids)s)
"""


async def fence_states(conn: Conn, task_ids: list[UUID]) -> dict[UUID, FenceState]:
    """How the given tasks stand, to say why a fence was refused."""
    async with conn.cursor(row_factory=class_row(FenceState)) as cursor:
        await cursor.execute(_FENCE_STATE, {"task_ids": task_ids})
        return {row.task_id: row for row in await cursor.fetchall()}
