"""The outbox: side effects that a transaction requests and that are performed after its commit."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from trace_etl.api.body import Name
from trace_etl.api.user.outbox import OutboxItem
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all


@dataclass(frozen=True)
class LeasedRow:
    """An outbox row that this replica leases to perform its side effect."""

    outbox_id: int
    kind: str
    target: str
    subject: UUID
    body: dict[str, Any] | None
    tries: int
    bulk: bool
    """Whether this is the wake-up of a bulk task."""
    job_id: UUID | None = None
    """The job of the task that this wakes up."""
    range_start: int | None = None
    """The first block of that task."""
    is_retry: bool = False
    """Whether an attempt of this task has failed."""
    never_ends: bool = False
    """Whether it is the task of an `always_on` source."""


# The commit does not wait for the disk: if a crash undoes it, the side effects are performed once more.
# The statement sets this option itself and is its own transaction: one round trip instead of four.
_LEASE = """
WITH due AS (
    SELECT outbox_id FROM outbox WHERE failed_at IS NULL AND next_try_at <= now()
     ORDER BY next_try_at, outbox_id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), leased AS (
    UPDATE outbox o SET tries = o.tries + 1, next_try_at = now() + %(hold)s
      FROM due WHERE o.outbox_id = due.outbox_id
    RETURNING o.*
)
SELECT outbox_id, kind, target, subject, body, tries, coalesce(t.bulk, false) AS bulk, t.job_id, t.range_start,
       coalesce(t.attempt > 1, false) AS is_retry,
       coalesce(starts_with(t.dedupe_key, 'always_on:'), false) AS never_ends
  FROM leased CROSS JOIN (SELECT set_config('synchronous_commit', 'off', true)) no_wait
  LEFT JOIN LATERAL (
       SELECT bulk, job_id, range_start, attempt, dedupe_key FROM tasks
        WHERE kind = 'wake_up' AND task_id = subject) t ON true
"""


async def lease(conn: Conn, *, limit: int, hold: timedelta) -> list[LeasedRow]:
    """Lease due rows for `hold`. If the caller dies, they are due again after that time."""
    rows = await fetch_all(conn, LeasedRow, _LEASE, {"limit": limit, "hold": hold})
    return sorted(rows, key=lambda row: row.outbox_id)


_DELETE = "DELETE FROM outbox WHERE outbox_id = ANY(%(outbox_ids)s)"
# As in `_LEASE`, the commit does not wait for the disk.
_DELETE_WITHOUT_WAITING = """
WITH performed AS (
    DELETE FROM outbox WHERE outbox_id = ANY(%(outbox_ids)s)
)
SELECT set_config('synchronous_commit', 'off', true)
"""


async def delete_performed(
    conn: Conn, outbox_ids: list[int], *, wait_for_disk: bool = False
) -> None:
    """Delete performed rows. Callers set `wait_for_disk` if the same transaction performed them."""
    query = _DELETE if wait_for_disk else _DELETE_WITHOUT_WAITING
    await conn.execute(query, {"outbox_ids": outbox_ids})


_RECORD_FAILURE = """
UPDATE outbox
   SET last_error = %(error)s, next_try_at = now() + %(retry_after)s,
       failed_at = CASE WHEN tries >= %(max_tries)s THEN now() END
 WHERE outbox_id = ANY(%(outbox_ids)s)
RETURNING outbox_id, failed_at IS NOT NULL
"""


async def record_failure(
    conn: Conn, outbox_ids: list[int], *, error: str, retry_after: timedelta, max_tries: int
) -> list[int]:
    """Delay rows until their next try. Rows without a try left are marked as failed and returned."""
    cursor = await conn.execute(
        _RECORD_FAILURE,
        {
            "outbox_ids": outbox_ids,
            "error": error,
            "retry_after": retry_after,
            "max_tries": max_tries,
        },
    )
    return [row[0] for row in await cursor.fetchall() if row[1]]


@dataclass(frozen=True)
class OutboxFilter:
    """Which outbox rows to list. None matches every row."""

    failed: bool | None = None
    kind: Name | None = None


_LIST = """
SELECT outbox_id, kind, target, subject, tries, next_try_at, failed_at, last_error, created_at
  FROM outbox_with_org
 WHERE outbox_id > %(after)s
   AND (%(failed)s::boolean IS NULL OR (failed_at IS NOT NULL) = %(failed)s)
   AND (%(kind)s::text IS NULL OR kind = %(kind)s)
   AND org_id = %(org_id)s
 ORDER BY outbox_id LIMIT %(limit)s
"""


async def list_outbox(
    conn: Conn, org_id: UUID, filters: OutboxFilter, *, after: int, limit: int
) -> list[OutboxItem]:
    """List one page of an org's outbox rows, pending or permanently failed, oldest first."""
    values = {"org_id": org_id, **vars(filters), "after": after, "limit": limit}
    return await fetch_all(conn, OutboxItem, _LIST, values)


_REPLAY = """
UPDATE outbox_with_org SET failed_at = NULL, tries = 0, next_try_at = now()
 WHERE failed_at IS NOT NULL AND org_id = %(org_id)s
"""


async def replay(conn: Conn, org_id: UUID) -> int:
    """Retry every failed row of an org, with the full number of tries. Returns how many rows."""
    return (await conn.execute(_REPLAY, {"org_id": org_id})).rowcount


_NEXT_DUE = "SELECT min(next_try_at) - now() FROM outbox WHERE failed_at IS NULL"


async def next_due(conn: Conn) -> timedelta | None:
    """Return the time until the next row is due, or None if no row is pending."""
    row = await (await conn.execute(_NEXT_DUE)).fetchone()
    return row[0] if row else None


_COUNT_UNROUTED = """
SELECT count(*) FROM outbox o JOIN events e ON e.event_id = o.subject
 WHERE o.kind = 'route_event' AND o.failed_at IS NULL AND e.org_id = %(org_id)s
"""


async def count_unrouted_events(conn: Conn, org_id: UUID) -> int:
    """Count the events of an org that wait for routing."""
    row = await (await conn.execute(_COUNT_UNROUTED, {"org_id": org_id})).fetchone()
    return row[0] if row else 0
