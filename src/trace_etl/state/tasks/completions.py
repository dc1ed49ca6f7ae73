"""End attempts (`Running → Completed | Failed | Canceled`) and record their events, many per statement."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from trace_etl.model.task import Fence
from trace_etl.state.db.pool import Conn, rows_as_json
from trace_etl.state.db.rows import fetch_all


@dataclass(frozen=True)
class NewEvent:
    """An event to record. Without `dataset_version`, it concerns the dataset's current generation."""

    dataset_uuid: UUID
    dataset_version: UUID | None
    scope_key: str
    partition_key: str | None
    range_start: int | None
    range_end: int | None
    cursor_value: int | None


class Completion(NamedTuple):
    """The result of an attempt, as its worker reports it."""

    fence: Fence
    status: str
    content_hash: bytes
    error_code: str | None = None
    error_message: str | None = None
    retry_after: timedelta | None = None
    """Delay before the next attempt, if one is left. None makes the failure final."""
    is_premature: bool = False
    """Whether the attempt could not begin yet and does not count."""
    is_unreachable: bool = False
    """Whether the attempt failed because an endpoint did not answer."""
    events: Sequence[NewEvent] = ()
    outputs: Sequence[dict[str, Any]] = ()
    """The outputs that the attempt reported, for people who look at its task."""
    isolation: str | None = None
    """How the untrusted code of the attempt was isolated."""

    @property
    def is_plain(self) -> bool:
        """Whether the attempt succeeded without events, outputs and an error text."""
        has_text = self.error_code or self.error_message is not None or self.isolation
        return self.status == "Completed" and not (self.events or self.outputs or has_text)


# The short form of `_COMPLETE`, enough for most tasks. It skips reaped tasks, and tasks with a cursor,
# an invalidation or a concurrency cap, whose completion writes more rows.
#
# As in claims, the two `||` make the planner use the primary key of `tasks`. The one on `w.status` makes
# the planner expect one completion instead of a hundred. The one on `t.status` excludes the indexes by
# status.
_COMPLETE_PLAIN = """
WITH done AS (
    UPDATE tasks t
       SET status = 'Completed', completion_hash = decode(w.content_hash, 'hex'),
           error_code = NULL, error_message = NULL, finished_at = now()
      FROM json_to_recordset(%(completions)s::json) AS w (
           task_id uuid, attempt int, lease_token uuid, status text, content_hash text,
           error_code text, error_message text, retry_seconds float8)
     WHERE t.task_id = w.task_id AND t.attempt = w.attempt AND t.lease_token = w.lease_token
       AND w.status || '' = w.status
       AND t.status || '' = 'Running' AND t.cursor_value IS NULL AND t.invalidation_id IS NULL
       AND t.max_concurrency IS NULL
    RETURNING t.task_id, t.attempt, t.worker_id, t.started_at, t.status, t.error_code,
              t.error_message, t.isolation
), history AS (
    INSERT INTO task_attempts (task_id, attempt, worker_id, started_at, outcome, error_code,
                               error_message, isolation)
    SELECT task_id, attempt, worker_id, started_at, status, error_code, error_message, isolation
      FROM done
    ON CONFLICT (task_id, attempt) DO UPDATE
        SET outcome = EXCLUDED.outcome, error_code = EXCLUDED.error_code,
            error_message = EXCLUDED.error_message, ended_at = now()
)
SELECT task_id, status FROM done
"""

# A reaped attempt (Failed, with a cause) may still be completed: its lease stays on the row until the
# next attempt starts.
_COMPLETE = """
WITH done AS (
    UPDATE tasks t
       SET status = CASE WHEN w.status = 'Failed' AND t.cancel_requested THEN 'Canceled'
                         ELSE w.status END,
           completion_hash = decode(w.content_hash, 'hex'), cause = NULL,
           error_code = w.error_code, error_message = w.error_message,
           unreachable_since = CASE WHEN w.is_unreachable
                                    THEN coalesce(t.unreachable_since, t.started_at) END,
           max_attempts = t.max_attempts + w.uncounted
                          + waits_for_endpoint(t, w.is_unreachable)::integer,
           (finished_at, retry_at) = (
               SELECT CASE WHEN due IS NULL THEN now() END, due
                 FROM (SELECT next_attempt_of(t, w.uncounted,
                                              make_interval(secs => w.retry_seconds),
                                              w.is_unreachable) AS due) next)
      FROM json_to_recordset(%(completions)s::json) AS w (
           task_id uuid, attempt int, lease_token uuid, status text, content_hash text,
           error_code text, error_message text, retry_seconds float8, outputs jsonb,
           uncounted int, is_unreachable boolean, isolation text)
     WHERE t.task_id = w.task_id AND t.attempt = w.attempt AND t.lease_token = w.lease_token
       AND w.status || '' = w.status
       AND (t.status || '' = 'Running'
            OR (t.cause IS NOT NULL AND t.status || '' IN ('Failed', 'Canceled')))
    RETURNING t.task_id, t.attempt, t.org_id, t.job_id, t.worker_id, t.started_at, t.status,
              t.error_code, t.error_message, t.max_concurrency, t.revision_id, t.dataset_uuid,
              t.dataset_version, t.cursor_value, t.invalidation_id, t.pinned_snapshot, w.outputs,
              coalesce(w.isolation, t.isolation) AS isolation
), history AS (
    INSERT INTO task_attempts (task_id, attempt, worker_id, started_at, outcome, error_code,
                               error_message, outputs, isolation)
    SELECT task_id, attempt, worker_id, started_at, status, error_code, error_message, outputs,
           isolation
      FROM done
    ON CONFLICT (task_id, attempt) DO UPDATE
        SET outcome = EXCLUDED.outcome, error_code = EXCLUDED.error_code,
            error_message = EXCLUDED.error_message, outputs = EXCLUDED.outputs,
            isolation = EXCLUDED.isolation, ended_at = now()
), recorded AS (
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
           SELECT outbox_entry('route_event', event_id) FROM recorded
            UNION ALL
           -- The attempt made room under a concurrency cap: wake a task that waits for it.
           SELECT outbox_entry('wake_next', job_id) FROM done WHERE max_concurrency IS NOT NULL))
), advanced AS (
    -- A task that matched no rows also moves the cursor: its blocks need not be read again.
    INSERT INTO consumer_cursors AS c (job_id, generation_hash, dataset_uuid, dataset_version,
                                       cursor_value, task_id)
    SELECT DISTINCT ON (done.job_id, r.generation_hash, done.dataset_version)
           done.job_id, r.generation_hash, done.dataset_uuid, done.dataset_version,
           done.cursor_value, done.task_id
      FROM done JOIN job_revisions r ON r.revision_id = done.revision_id
     WHERE done.cursor_value IS NOT NULL AND done.status = 'Completed'
       AND done.dataset_version IS NOT NULL
       -- The cursor stays before blocks that were invalidated after the attempt pinned its inputs:
       -- the rewritten blocks must still be read.
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


async def complete_plain(conn: Conn, completions: list[Completion]) -> dict[UUID, str]:
    """Complete attempts whose completion is plain. Returns the status by task.

    A task without an entry was skipped: call `complete` for it.
    """
    values = {
        "completions": rows_as_json([_make_completion_row(c) for c in _sort_by_task(completions)])
    }
    return dict(await conn.rows(_COMPLETE_PLAIN, values, tuple))


async def complete(conn: Conn, completions: list[Completion]) -> dict[UUID, str]:
    """End attempts, record their events and enqueue the routing. Returns the status by task.

    A completion whose fence is stale has no entry. A call has at most one completion per task.
    """
    cursor = await conn.execute(
        _COMPLETE,
        {
            "completions": rows_as_json(
                [_make_completion_row(c) for c in _sort_by_task(completions)]
            ),
            "events": _encode_events((c.fence, c.events) for c in completions if c.events),
        },
    )
    return dict(await cursor.fetchall())


def _sort_by_task(completions: list[Completion]) -> list[Completion]:
    """Sort by task id: rows are locked in this order, so two batches cannot deadlock."""
    return sorted(completions, key=lambda c: c.fence.task_id)


def _make_completion_row(c: Completion) -> dict[str, Any]:
    return {
        "task_id": c.fence.task_id,
        "attempt": c.fence.attempt,
        "lease_token": c.fence.lease_token,
        "status": c.status,
        "content_hash": c.content_hash.hex(),
        "error_code": c.error_code,
        "error_message": c.error_message,
        "retry_seconds": c.retry_after.total_seconds() if c.retry_after else None,
        "uncounted": int(c.is_premature),
        "isolation": c.isolation,
        **({"outputs": c.outputs} if c.outputs else {}),
        "is_unreachable": c.is_unreachable and c.retry_after is not None,
    }


def _encode_events(events_by_fence: Iterable[tuple[Fence, Sequence[NewEvent]]]) -> str:
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
            for fence, events in events_by_fence
            for e in events
        ]
    )


# The scope key of a cursor includes the last invalidation that the producer recorded before the event. So a
# cursor that is reported again after a reorganisation is a new event. Events of a paused always_on source
# are deferred until the source resumes.
_RECORD_EVENTS = """
WITH producer AS (
    SELECT t.task_id, t.attempt, t.org_id, t.job_id, t.bulk,
           t.dedupe_key LIKE 'always_on:%%' AND is_paused(j, t.bulk) AS is_held
      FROM tasks t JOIN jobs j USING (job_id)
     WHERE t.task_id = %(task_id)s AND t.attempt = %(attempt)s AND t.lease_token = %(lease_token)s
       AND t.status = 'Running'
       FOR UPDATE OF t
), recorded AS (
    INSERT INTO events (org_id, dataset_uuid, dataset_version, scope_key, partition_key,
                        range_start, range_end, cursor_value, producer_task_id, attempt)
    SELECT p.org_id, d.dataset_uuid, coalesce(e.dataset_version, d.dataset_version),
           CASE WHEN e.cursor_value IS NULL THEN e.scope_key
                ELSE concat(e.scope_key, (
                     -- The last invalidation, not their number: retention deletes old ones.
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
             FROM recorded CROSS JOIN producer p WHERE NOT p.is_held))
), deferred AS (
    INSERT INTO deferred_events (event_id, job_id, bulk)
    SELECT event_id, p.job_id, p.bulk FROM recorded CROSS JOIN producer p WHERE p.is_held
)
SELECT (SELECT count(*) FROM producer), (SELECT count(*) FROM recorded) FROM enqueued
"""


async def record_events(conn: Conn, fence: Fence, events: list[NewEvent]) -> int | None:
    """Record events of a running attempt. Returns how many are new, or None if the fence is stale."""
    cursor = await conn.execute(
        _RECORD_EVENTS,
        {
            "task_id": fence.task_id,
            "attempt": fence.attempt,
            "lease_token": fence.lease_token,
            "events": _encode_events([(fence, events)]),
        },
    )
    row = await cursor.fetchone()
    return row[1] if row and row[0] else None


@dataclass(frozen=True)
class FenceState:
    """The state of a task that explains why a fence was refused."""

    task_id: UUID
    status: str
    attempt: int
    lease_token: UUID | None
    completion_hash: bytes | None


_FENCE_STATES = """
SELECT task_id, status, attempt, lease_token, completion_hash
  FROM tasks WHERE task_id = ANY(%(task_ids)s)
"""


async def fence_states(conn: Conn, task_ids: list[UUID]) -> dict[UUID, FenceState]:
    """Return the states of the given tasks; an unknown task has no entry."""
    rows = await fetch_all(conn, FenceState, _FENCE_STATES, {"task_ids": task_ids})
    return {row.task_id: row for row in rows}
