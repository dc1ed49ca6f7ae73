"""Resume jobs after a pause: route their deferred events and wake their queued tasks."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from trace_etl.state.db.pool import Conn
from trace_etl.state.routing import events
from trace_etl.state.tasks import task_queries


@dataclass(frozen=True)
class ResumePosition:
    """The last task that an unfinished resume has woken."""

    bulk: bool
    queued_at: datetime
    task_id: UUID

    @classmethod
    def from_body(cls, body: dict[str, Any] | None) -> "ResumePosition | None":
        """Read a position from the body of an outbox row. The first step has none."""
        if body is None:
            return None
        at = datetime.fromisoformat(body["queued_at"])
        return cls(body["bulk"], at, UUID(body["task_id"]))


async def resume_job(conn: Conn, job_id: UUID, *, after: ResumePosition | None, limit: int) -> None:
    """Perform one bounded step of resuming a job, and enqueue the next step if work is left."""
    deferred = await take_deferred(conn, job_id, limit=limit)
    if deferred:
        await events.route(conn, deferred)
    if after is None:
        await task_queries.wake_next(conn, job_id)
    last = await wake_tasks(conn, job_id, after=after, limit=limit)
    if last is not None or len(deferred) == limit:
        await enqueue_next_step(conn, job_id, last or after or _START)


_TAKE_DEFERRED = """
WITH taken AS (
    SELECT d.event_id, d.job_id, d.bulk FROM deferred_events d JOIN jobs j USING (job_id)
     WHERE d.job_id = %(job_id)s
       AND NOT is_paused(j, d.bulk)
     ORDER BY d.bulk, d.deferred_at LIMIT %(limit)s
       FOR UPDATE OF d SKIP LOCKED
)
DELETE FROM deferred_events d USING taken t
 WHERE d.event_id = t.event_id AND d.job_id = t.job_id AND d.bulk = t.bulk
RETURNING d.event_id
"""


async def take_deferred(conn: Conn, job_id: UUID, *, limit: int) -> list[UUID]:
    """Delete and return deferred events of a job that is not paused.

    The caller routes them in the same transaction.
    """
    cursor = await conn.execute(_TAKE_DEFERRED, {"job_id": job_id, "limit": limit})
    return [row[0] for row in await cursor.fetchall()]


_WAKE_TASKS = """
WITH next AS (
    SELECT t.task_id, t.runtime, t.bulk, t.queued_at,
           t.max_concurrency IS NOT NULL OR j.capped_operator IS NOT NULL AS capped
      FROM tasks t JOIN jobs j USING (job_id)
     WHERE t.job_id = %(job_id)s AND t.status = 'Queued'
       AND NOT is_paused(j, t.bulk)
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
_START = ResumePosition(False, datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0))


async def wake_tasks(
    conn: Conn, job_id: UUID, *, after: ResumePosition | None, limit: int
) -> ResumePosition | None:
    """Wake the next queued tasks of a job. Returns the last one, or None if no task is left."""
    start = after or _START
    values = {
        "job_id": job_id,
        "bulk": start.bulk,
        "queued_at": start.queued_at,
        "task_id": start.task_id,
        "limit": limit,
    }
    woken = await (await conn.execute(_WAKE_TASKS, values)).fetchall()
    return ResumePosition(*woken[0]) if len(woken) == limit else None


_ENQUEUE_NEXT_STEP = """
SELECT outbox_id FROM enqueue(ARRAY[outbox_entry('release', %(job_id)s, body => jsonb_build_object(
    'bulk', %(bulk)s::boolean, 'queued_at', %(queued_at)s::timestamptz,
    'task_id', %(task_id)s::uuid))])
"""


async def enqueue_next_step(conn: Conn, job_id: UUID, position: ResumePosition) -> None:
    """Enqueue the step that continues after this position."""
    values = {**vars(position), "job_id": job_id}
    await conn.execute(_ENQUEUE_NEXT_STEP, values)


# A resume does not see an event that a concurrent transaction defers.
_LIST_JOBS_TO_ROUTE = """
SELECT j.job_id FROM jobs j
 WHERE j.paused_at IS NULL AND EXISTS (SELECT FROM deferred_events)
   AND EXISTS (SELECT FROM deferred_events d WHERE d.job_id = j.job_id
                  AND NOT is_paused(j, d.bulk))
 LIMIT %(limit)s
"""


async def list_missed_jobs(conn: Conn, *, limit: int) -> list[UUID]:
    """List jobs that are not paused and still have deferred events."""
    cursor = await conn.execute(_LIST_JOBS_TO_ROUTE, {"limit": limit})
    return [row[0] for row in await cursor.fetchall()]
