"""Letting paused jobs go on: the events they were not given, and wake-ups for what is queued."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from trace_etl.state.db.pool import Conn
from trace_etl.state.routing import events
from trace_etl.state.tasks import task_queries


@dataclass(frozen=True)
class Position:
    """The last task woken by a release that is not over."""

    bulk: bool
    queued_at: datetime
    task_id: UUID

    @classmethod
    def of(cls, body: dict[str, Any] | None) -> "Position | None":
        """As an outbox row holds it."""
        if body is None:
            return None
        at = datetime.fromisoformat(body["queued_at"])
        return cls(body["bulk"], at, UUID(body["task_id"]))


async def release(conn: Conn, job_id: UUID, *, after: Position | None, limit: int) -> None:
    """One bounded step of letting a job go on; a step that is not the last asks for the next."""
    owed = await take_deferred(conn, job_id, limit=limit)
    if owed:
        await events.route(conn, owed)
    if after is None:
        await task_queries.wake_next(conn, job_id)
    reached = await wake(conn, job_id, after=after, limit=limit)
    if reached is not None or len(owed) == limit:
        await go_on(conn, job_id, reached or after or _START)


_TAKE_DEFERRED = """
WITH taken AS (
    SELECT d.event_id, d.job_id, d.bulk FROM deferred_events d JOIN jobs j USING (job_id)
     WHERE d.job_id = %(job_id)s
       AND j.paused_at IS NULL AND NOT (d.bulk AND j.bulk_paused_at IS NOT NULL)
     ORDER BY d.bulk, d.deferred_at LIMIT %(limit)s
       FOR UPDATE OF d SKIP LOCKED
)
DELETE FROM deferred_events d USING taken t
 WHERE d.event_id = t.event_id AND d.job_id = t.job_id AND d.bulk = t.bulk
RETURNING d.event_id
"""


async def take_deferred(conn: Conn, job_id: UUID, *, limit: int) -> list[UUID]:
    """Events that a job may be given now. Whoever takes them routes them, in this transaction."""
    cursor = await conn.execute(_TAKE_DEFERRED, {"job_id": job_id, "limit": limit})
    return [row[0] for row in await cursor.fetchall()]


_WAKE = """
WITH next AS (
    SELECT t.task_id, t.runtime, t.bulk, t.queued_at,
           t.max_concurrency IS NOT NULL OR j.capped_operator IS NOT NULL AS capped
      FROM tasks t JOIN jobs j USING (job_id)
     WHERE t.job_id = %(job_id)s AND t.status = 'Queued'
       AND j.paused_at IS NULL AND NOT (t.bulk AND j.bulk_paused_at IS NOT NULL)
       AND (t.bulk, t.queued_at, t.task_id) > (%(bulk)s, %(queued_at)s, %(task_id)s)
     ORDER BY t.bulk, t.queued_at, t.task_id LIMIT %(limit)s
), woken AS (
    SELECT count(*) FROM enqueue(ARRAY(
           SELECT wake_entry(task_id, runtime)
             FROM next WHERE NOT capped  -- `wake_next` wakes tasks of a capped job
            ORDER BY bulk, queued_at))
)
SELECT bulk, queued_at, task_id
  FROM next CROSS JOIN woken
 ORDER BY bulk DESC, queued_at DESC, task_id DESC
"""
_START = Position(False, datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0))


async def wake(conn: Conn, job_id: UUID, *, after: Position | None, limit: int) -> Position | None:
    """Wake a job's next queued tasks. Returns where to go on; None: that was all."""
    start = after or _START
    values = {
        "job_id": job_id,
        "bulk": start.bulk,
        "queued_at": start.queued_at,
        "task_id": start.task_id,
        "limit": limit,
    }
    found = await (await conn.execute(_WAKE, values)).fetchall()
    return Position(*found[0]) if len(found) == limit else None


_GO_ON = """
SELECT outbox_id FROM enqueue(ARRAY[outbox_entry('release', %(job_id)s, body => jsonb_build_object(
    'bulk', %(bulk)s::boolean, 'queued_at', %(queued_at)s::timestamptz,
    'task_id', %(task_id)s::uuid))])
"""


async def go_on(conn: Conn, job_id: UUID, position: Position) -> None:
    """Ask for the rest of a release."""
    values = {**vars(position), "job_id": job_id}
    await conn.execute(_GO_ON, values)


# A release that looked while an event was being deferred has missed it.
_OVERLOOKED = """
SELECT j.job_id FROM jobs j
 WHERE j.paused_at IS NULL AND EXISTS (SELECT FROM deferred_events)
   AND EXISTS (SELECT FROM deferred_events d WHERE d.job_id = j.job_id
                  AND NOT (d.bulk AND j.bulk_paused_at IS NOT NULL))
 LIMIT %(limit)s
"""


async def overlooked(conn: Conn, *, limit: int) -> list[UUID]:
    """Jobs that may go on, and are still owed events."""
    cursor = await conn.execute(_OVERLOOKED, {"limit": limit})
    return [row[0] for row in await cursor.fetchall()]
