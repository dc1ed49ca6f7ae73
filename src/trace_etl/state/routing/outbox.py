"""The outbox: what a transaction wants done outside it."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.api.body import Name
from trace_etl.api.user.outbox import OutboxItem
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all


@dataclass(frozen=True)
class Intent:
    outbox_id: int
    kind: str
    target: str
    subject: UUID
    body: dict[str, Any] | None
    tries: int
    bulk: bool
    """A wake-up for a task that gives way to others."""


# A lost lease or removal only means doing it once more, so neither waits for the disk. Said inside
# the statement, which is then a transaction by itself: one round trip instead of four.
_NO_WAIT: LiteralString = "set_config('synchronous_commit', 'off', true)"

_LEASE = (
    """
WITH due AS (
    SELECT outbox_id FROM outbox WHERE failed_at IS NULL AND next_try_at <= now()
     ORDER BY next_try_at, outbox_id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), leased AS (
    UPDATE outbox o SET tries = o.tries + 1, next_try_at = now() + %(hold)s
      FROM due WHERE o.outbox_id = due.outbox_id
    RETURNING o.*
)
SELECT outbox_id, kind, target, subject, body, tries,
       kind = 'wake_up' AND coalesce(
           (SELECT t.bulk FROM tasks t WHERE t.task_id = subject), false) AS bulk
  FROM leased, (SELECT """
    + _NO_WAIT
    + """) no_wait
"""
)


async def lease(conn: Conn, *, limit: int, hold: timedelta) -> list[Intent]:
    """Take due rows for `hold`; whoever dies holding them leaves them to the next one."""
    async with conn.cursor(row_factory=class_row(Intent)) as cursor:
        await cursor.execute(_LEASE, {"limit": limit, "hold": hold})
        return sorted(await cursor.fetchall(), key=lambda intent: intent.outbox_id)


_DONE = "DELETE FROM outbox WHERE outbox_id = ANY(%s)"
_DONE_NO_WAIT = "WITH done AS (" + _DONE + ") SELECT " + _NO_WAIT


async def done(conn: Conn, outbox_ids: list[int], *, wait_for_disk: bool = False) -> None:
    """Forget performed rows. Waits for the disk when the work itself is in this transaction."""
    await conn.execute(_DONE if wait_for_disk else _DONE_NO_WAIT, (outbox_ids,))


_FAILED = """
UPDATE outbox
   SET last_error = %(error)s, next_try_at = now() + %(retry_after)s,
       failed_at = CASE WHEN tries >= %(max_tries)s THEN now() END
 WHERE outbox_id = ANY(%(outbox_ids)s)
RETURNING outbox_id, failed_at IS NOT NULL
"""


async def failed(
    conn: Conn, outbox_ids: list[int], *, error: str, retry_after: timedelta, max_tries: int
) -> list[int]:
    """Put rows off, or end them as failed after the last try. Returns those that ended."""
    cursor = await conn.execute(
        _FAILED,
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
    """Which side effects to list. None matches every one."""

    failed: bool | None = None
    kind: Name | None = None


# Whose row it is: that of what it is about. Rows are short-lived, so they hold no org themselves.
_OF_ORG: LiteralString = """
    coalesce((SELECT t.org_id FROM tasks t WHERE t.task_id = o.subject),
             (SELECT e.org_id FROM events e WHERE e.event_id = o.subject),
             (SELECT j.org_id FROM jobs j WHERE j.job_id = o.subject),
             (SELECT b.org_id FROM buffer_publishes b WHERE b.publish_id = o.subject),
             (SELECT i.org_id FROM invalidations i WHERE i.invalidation_id = o.subject)
    ) = %(org_id)s
"""
_LIST = (
    """
SELECT outbox_id, kind, target, subject, tries, next_try_at, failed_at, last_error, created_at
  FROM outbox o
 WHERE outbox_id > %(after)s
   AND (%(failed)s::boolean IS NULL OR (failed_at IS NOT NULL) = %(failed)s)
   AND (%(kind)s::text IS NULL OR kind = %(kind)s)
   AND """
    + _OF_ORG
    + " ORDER BY outbox_id LIMIT %(limit)s"
)


async def list_outbox(
    conn: Conn, org_id: UUID, which: OutboxFilter, *, after: int, limit: int
) -> list[OutboxItem]:
    """List one page of an org's side effects that are pending or failed for good, oldest first."""
    values = {"org_id": org_id, **vars(which), "after": after, "limit": limit}
    return await fetch_all(conn, OutboxItem, _LIST, values)


_REPLAY = (
    """
UPDATE outbox o SET failed_at = NULL, tries = 0, next_try_at = now()
 WHERE failed_at IS NOT NULL AND """
    + _OF_ORG
)


async def replay(conn: Conn, org_id: UUID) -> int:
    """Give every failed row of an org a new set of tries. Returns how many there were."""
    return (await conn.execute(_REPLAY, {"org_id": org_id})).rowcount


_NEXT_DUE = "SELECT min(next_try_at) - now() FROM outbox WHERE failed_at IS NULL"


async def next_due(conn: Conn) -> timedelta | None:
    """How long until a row falls due; None when the outbox is empty."""
    row = await (await conn.execute(_NEXT_DUE)).fetchone()
    return row[0] if row else None


_UNROUTED = """
SELECT count(*) FROM outbox o JOIN events e ON e.event_id = o.subject
 WHERE o.kind = 'route_event' AND o.failed_at IS NULL AND e.org_id = %(org_id)s
"""


async def unrouted(conn: Conn, org_id: UUID) -> int:
    """How many events of an org are still to be routed."""
    row = await (await conn.execute(_UNROUTED, {"org_id": org_id})).fetchone()
    return row[0] if row else 0
