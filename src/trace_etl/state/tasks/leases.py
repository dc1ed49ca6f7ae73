"""Extend leases, end expired attempts, and start the next attempts."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from trace_etl.model.task import Fence, Isolation
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all


@dataclass(frozen=True)
class Lease:
    """A lease that was extended."""

    task_id: UUID
    attempt: int
    lease_token: UUID
    lease_expires_at: datetime
    cancel_requested: bool
    hold: bool
    """Whether the job is paused. An always_on source then stays alive and emits no events."""


# Only the lease of a Running attempt is extended. A reaped attempt has ended: it may only report a late
# completion.
_EXTEND = """
WITH requested AS (
    SELECT task_id, attempt, lease_token, max(isolation) AS isolation
      FROM unnest(%(task_ids)s::uuid[], %(attempts)s::int[], %(lease_tokens)s::uuid[],
                  %(isolations)s::text[])
        AS w (task_id, attempt, lease_token, isolation)
     GROUP BY task_id, attempt, lease_token
), locked AS (
    SELECT t.task_id, w.isolation FROM tasks t JOIN requested w USING (task_id, attempt, lease_token)
     WHERE t.status = 'Running' ORDER BY t.task_id FOR UPDATE OF t
)
UPDATE tasks t
   SET lease_expires_at = now() + make_interval(secs => t.lease_seconds),  -- the database clock is the only clock
       isolation = coalesce(l.isolation, t.isolation)
  FROM locked l
 WHERE t.task_id = l.task_id
RETURNING t.task_id, t.attempt, t.lease_token, t.lease_expires_at, t.cancel_requested,
          (SELECT is_paused(j, t.bulk) FROM jobs j WHERE j.job_id = t.job_id) AS hold
"""


@dataclass(frozen=True)
class Extension:
    """A heartbeat of an attempt, and how its code is isolated, if its sandbox has started."""

    fence: Fence
    isolation: Isolation | None = None


async def extend(conn: Conn, extensions: list[Extension]) -> dict[Fence, Lease]:
    """Extend leases. A stale fence has no entry in the result."""
    fences = [extension.fence for extension in extensions]
    rows = await fetch_all(
        conn,
        Lease,
        _EXTEND,
        {
            "task_ids": [f.task_id for f in fences],
            "attempts": [f.attempt for f in fences],
            "lease_tokens": [f.lease_token for f in fences],
            "isolations": [extension.isolation for extension in extensions],
        },
    )
    return {Fence(r.task_id, r.attempt, r.lease_token): r for r in rows}


_LEASE_END = """
SELECT lease_expires_at FROM tasks
 WHERE task_id = %(task_id)s AND attempt = %(attempt)s AND lease_token = %(lease_token)s
   AND status = 'Running'
"""
_LOCK_LEASE = """
SELECT FROM tasks
 WHERE task_id = %(task_id)s AND attempt = %(attempt)s AND lease_token = %(lease_token)s
   AND status = 'Running' FOR NO KEY UPDATE
"""


async def find_lease_end(conn: Conn, fence: Fence) -> datetime | None:
    """Return the end of a running attempt's lease; None for a stale fence."""
    row = await (await conn.execute(_LEASE_END, fence._asdict())).fetchone()
    return row[0] if row else None


async def lock_lease(conn: Conn, fence: Fence) -> bool:
    """Lock a running attempt until commit, so that it cannot end. False for a stale fence."""
    return await (await conn.execute(_LOCK_LEASE, fence._asdict())).fetchone() is not None


# The row lock makes the reapers of other replicas wait until the leases are extended.
_MOVE_CLOCK = """
UPDATE lease_clock c SET seen_at = greatest(now(), before.seen_at)
  FROM (SELECT seen_at FROM lease_clock FOR UPDATE) before
RETURNING before.seen_at, now() - before.seen_at
"""
# A lease that had expired before the outage stays expired. Rows are locked in the same order as by
# heartbeats, so that this statement and a heartbeat cannot deadlock.
_ADD_OUTAGE = """
WITH locked AS (
    SELECT task_id FROM tasks WHERE status = 'Running' AND lease_expires_at > %(seen_at)s
     ORDER BY task_id FOR UPDATE
)
UPDATE tasks t
   SET lease_expires_at = greatest(t.lease_expires_at + %(outage)s, now() + %(grace)s)
  FROM locked WHERE t.task_id = locked.task_id
"""


async def extend_by_outage(
    conn: Conn, *, tolerance: timedelta, grace: timedelta
) -> tuple[timedelta, int] | None:
    """Extend all leases by the time in which no Dispatcher could record heartbeats, and set the clock.

    A gap up to `tolerance` is not an outage. After an outage, each lease lasts at least for `grace`.
    Returns the length of the outage and the number of leases, or None. Call it in the transaction that
    reaps.
    """
    row = await (await conn.execute(_MOVE_CLOCK)).fetchone()
    if row is None or row[1] <= tolerance:
        return None
    values = {"seen_at": row[0], "outage": row[1], "grace": grace}
    return row[1], (await conn.execute(_ADD_OUTAGE, values)).rowcount


@dataclass(frozen=True)
class ExpiredAttempt:
    """A Running attempt whose lease or deadline has passed, or whose worker is gone."""

    task_id: UUID
    attempt: int
    worker_id: str | None
    past_deadline: bool
    cancel_requested: bool


_LOCK_EXPIRED = """
SELECT task_id, attempt, worker_id, false AS past_deadline, cancel_requested
  FROM tasks WHERE status = 'Running' AND lease_expires_at < now()
 ORDER BY lease_expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""
_LOCK_OVERDUE = """
SELECT task_id, attempt, worker_id, true AS past_deadline, cancel_requested
  FROM tasks WHERE status = 'Running' AND deadline_at < now() AND lease_expires_at >= now()
 ORDER BY deadline_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""

_LOCK_GONE = """
SELECT task_id, attempt, worker_id, false AS past_deadline, cancel_requested
  FROM tasks WHERE status = 'Running' AND lease_expires_at >= now() AND worker_id = ANY(%(gone)s)
   AND (deadline_at IS NULL OR deadline_at >= now())
 ORDER BY lease_expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""


async def lock_expired(
    conn: Conn, *, limit: int, gone: Collection[str] = ()
) -> list[ExpiredAttempt]:
    """Lock attempts whose lease or deadline has passed, and those of `gone` workers, until commit."""
    expired: list[ExpiredAttempt] = []
    values = {"limit": limit, "gone": list(gone)}
    for query in (_LOCK_EXPIRED, _LOCK_OVERDUE, _LOCK_GONE):
        if gone or query is not _LOCK_GONE:
            expired += await fetch_all(conn, ExpiredAttempt, query, values)
    return expired


# The lease stays on the row: a late completion of this attempt is accepted until the next attempt starts.
_REAP = """
WITH ended AS (
    UPDATE tasks
       SET status = CASE WHEN cancel_requested THEN 'Canceled' ELSE 'Failed' END,
           cause = %(cause)s, error_code = %(cause)s, error_message = %(error_message)s,
           (finished_at, retry_at) = (
               SELECT CASE WHEN due IS NULL THEN now() END, due
                 FROM (SELECT next_attempt_of(tasks, 0, %(retry_after)s::interval, false)
                           AS due) next)
     WHERE task_id = %(task_id)s AND attempt = %(attempt)s AND status = 'Running'
    RETURNING task_id, attempt, worker_id, started_at, status, isolation, job_id, max_concurrency
), history AS (
    INSERT INTO task_attempts (task_id, attempt, worker_id, started_at, outcome, cause, error_code,
                               error_message, isolation)
    SELECT task_id, attempt, worker_id, started_at, status, %(cause)s, %(cause)s,
           %(error_message)s, isolation
      FROM ended
)
-- The attempt made room under a concurrency cap: wake a task that waits for it.
SELECT outbox_id FROM enqueue(ARRAY(
       SELECT outbox_entry('wake_next', job_id) FROM ended WHERE max_concurrency IS NOT NULL))
"""


async def reap(
    conn: Conn, expired: ExpiredAttempt, *, cause: str, message: str, retry_after: timedelta | None
) -> None:
    """End an expired attempt and record the cause. A task with a cancel request becomes Canceled."""
    await conn.execute(
        _REAP,
        {
            "task_id": expired.task_id,
            "attempt": expired.attempt,
            "cause": cause,
            "error_message": message,
            "retry_after": retry_after,
        },
    )


_START_NEXT = """
WITH due AS (
    SELECT task_id FROM tasks WHERE retry_at <= now()
     ORDER BY retry_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), started AS (
    UPDATE tasks t
       SET status = 'Queued', attempt = attempt + 1, queued_at = now(), retry_at = NULL,
           lease_token = NULL, lease_expires_at = NULL, deadline_at = NULL, worker_id = NULL,
           started_at = NULL, completion_hash = NULL, cause = NULL, isolation = NULL
      FROM due
     WHERE t.task_id = due.task_id
    RETURNING t.task_id, t.attempt, t.runtime
), woken AS (
    SELECT count(*) FROM enqueue(ARRAY(SELECT wake_entry(task_id, runtime) FROM started))
)
SELECT task_id, attempt FROM started CROSS JOIN woken
"""


async def start_next_attempts(conn: Conn, *, limit: int) -> list[tuple[UUID, int]]:
    """Queue the next attempt of tasks whose retry is due (`Failed → Queued`) and enqueue wake-ups.

    Returns task ids with their new attempt.
    """
    cursor = await conn.execute(_START_NEXT, {"limit": limit})
    return [(row[0], row[1]) for row in await cursor.fetchall()]


_NEXT_RETRY = "SELECT min(retry_at) - now() FROM tasks WHERE retry_at IS NOT NULL"
_NEXT_EXPIRY = """
SELECT least((SELECT min(lease_expires_at) FROM tasks WHERE status = 'Running'),
             (SELECT min(deadline_at) FROM tasks WHERE status = 'Running')) - now()
"""


async def next_retry(conn: Conn) -> timedelta | None:
    """Return the time until the next retry is due, or None if no retry is pending."""
    row = await (await conn.execute(_NEXT_RETRY)).fetchone()
    return row[0] if row else None


async def next_expiry(conn: Conn) -> timedelta | None:
    """Return the time until the next lease or deadline passes, or None if no task runs."""
    row = await (await conn.execute(_NEXT_EXPIRY)).fetchone()
    return row[0] if row else None
