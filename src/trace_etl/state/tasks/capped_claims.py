"""Claims of tasks whose job (`scaling.max_concurrency`) or operator has a cap."""

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from trace_etl.state.db.pool import Conn
from trace_etl.state.tasks.claims import ClaimedTask, ClaimRequest, as_json

_CANDIDATES = """
SELECT t.task_id, t.job_id, t.max_concurrency, c.operator, c.cap
  FROM tasks t JOIN jobs j USING (job_id)
  LEFT JOIN operator_caps c ON c.operator = j.capped_operator
 WHERE t.task_id = ANY(%(task_ids)s) AND t.status = 'Queued' AND NOT t.cancel_requested
   AND (t.max_concurrency IS NOT NULL OR j.capped_operator IS NOT NULL)
   AND NOT is_paused(j, t.bulk) AND NOT is_held_by_check(t)
 ORDER BY t.bulk, t.queued_at, t.task_id
"""

# The locks serialise the claims of one capped operator or job over all replicas, until commit. A
# transaction locks all operators before any job, each in order: two transactions cannot deadlock.
_LOCK_OPERATOR = "SELECT pg_advisory_xact_lock(hashtextextended('operator:' || %(operator)s, 0))"
_LOCK_JOB = "SELECT pg_advisory_xact_lock(hashtextextended('job:' || %(job_id)s::text, 0))"
_RUNNING_IN_JOB = "SELECT count(*) FROM tasks WHERE job_id = %(job_id)s AND status = 'Running'"
_RUNNING_OF_OPERATOR = """
SELECT count(*) FROM jobs j JOIN tasks t USING (job_id)
 WHERE j.capped_operator = %(operator)s AND t.status = 'Running'
"""

# Starts tasks as in `claims.claim`. A non-null cap makes the completion enqueue `wake_next`, which wakes a
# waiting task. So a task that has only a cap of its operator gets the largest possible number as its cap.
_CLAIM_CAPPED = """
UPDATE tasks t
   SET max_concurrency = coalesce(t.max_concurrency, 2147483647),
       status = 'Running', lease_token = l.lease_token, worker_id = l.worker_id,
       started_at = now(), pinned_snapshot = pg_current_snapshot(),
       lease_expires_at = now() + make_interval(secs => t.lease_seconds),
       deadline_at = now() + make_interval(secs => t.timeout_seconds)
  FROM json_to_recordset(%(requests)s::json) AS l (
       task_id uuid, worker_id text, lease_token uuid)
 WHERE t.task_id = l.task_id AND t.status || '' = 'Queued' AND NOT t.cancel_requested
   AND l.worker_id || '' = l.worker_id
RETURNING t.task_id, t.attempt, t.lease_token, t.lease_expires_at, t.org_id, t.revision_id,
       t.timeout_seconds, t.lease_seconds, t.dataset_uuid, t.dataset_version, t.partition_key,
       t.range_start, t.range_end, t.cursor_value, t.invalidation_id,
       (SELECT json_agg(pin) FROM pinned_inputs(t.revision_id, t.dataset_uuid, t.dataset_version,
                                                t.range_start, t.range_end, t.partition_key,
                                                t.is_refresh))::text AS pins,
       t.parameters::text, t.is_refresh
"""


class _Candidate(NamedTuple):
    """A requested task whose job or operator has a cap."""

    task_id: UUID
    job_id: UUID
    job_cap: int | None
    operator: str | None
    operator_cap: int | None

    def caps(self) -> list[tuple[UUID | str | None, int]]:
        """Return the caps of its job and of its operator, by job id and operator name."""
        limits = ((self.job_id, self.job_cap), (self.operator, self.operator_cap))
        return [(owner, cap) for owner, cap in limits if cap is not None]


async def claim_capped(conn: Conn, requests: list[ClaimRequest]) -> dict[UUID, ClaimedTask]:
    """Start requested tasks under caps, oldest first, and never exceed a cap.

    Returns the started tasks by lease token. Call it inside a transaction.
    """
    by_task = {r.task_id: r for r in requests}
    candidates = await _list_candidates(conn, by_task)
    running: dict[UUID | str | None, int] = {}
    for operator in sorted({c.operator for c in candidates if c.operator is not None}):
        running[operator] = await _lock_operator(conn, operator)
    for job_id in sorted({c.job_id for c in candidates if c.job_cap is not None}):
        running[job_id] = await _lock_job(conn, job_id)
    # Read the candidates again: some may have been started while this claim waited for locks.
    chosen = _choose(await _list_candidates(conn, by_task), running)
    if not chosen:
        return {}
    values = {"requests": as_json([by_task[task_id] for task_id in chosen])}
    claimed = await conn.rows(_CLAIM_CAPPED, values, ClaimedTask._make)
    return {task.lease_token: task for task in claimed}


def _choose(candidates: list[_Candidate], running: dict[UUID | str | None, int]) -> list[UUID]:
    """Choose the tasks whose caps all have room. Counts each chosen task as running."""
    chosen: list[UUID] = []
    for c in candidates:
        if all(owner in running and running[owner] < cap for owner, cap in c.caps()):
            chosen.append(c.task_id)
            for owner in (c.job_id, c.operator):
                if owner in running:
                    running[owner] += 1
    return chosen


async def _list_candidates(conn: Conn, task_ids: Iterable[UUID]) -> list[_Candidate]:
    cursor = await conn.execute(_CANDIDATES, {"task_ids": list(task_ids)})
    return [_Candidate(*row) for row in await cursor.fetchall()]


async def _lock_operator(conn: Conn, operator: str) -> int:
    """Stop other claims of an operator until commit. Returns how many of its tasks run."""
    await conn.execute(_LOCK_OPERATOR, {"operator": operator})
    (row,) = await (await conn.execute(_RUNNING_OF_OPERATOR, {"operator": operator})).fetchall()
    return row[0]


async def _lock_job(conn: Conn, job_id: UUID) -> int:
    """Stop other capped claims of a job until commit. Returns how many of its tasks run."""
    await conn.execute(_LOCK_JOB, {"job_id": job_id})
    (row,) = await (await conn.execute(_RUNNING_IN_JOB, {"job_id": job_id})).fetchall()
    return row[0]


# Each job offers as many tasks as its cap has room for. The room of an operator goes to the oldest offered
# tasks of all its jobs, so a job without room does not block other jobs. If tasks of one job were queued
# with different caps, the cap of the oldest task applies.
_FIND_READY = """
WITH operators AS MATERIALIZED (
    SELECT operator, room FROM room_under_operator_caps
), offered AS (
    SELECT t.task_id, t.bulk, t.queued_at, NULL::text AS operator, NULL::bigint AS room
      FROM jobs j
     CROSS JOIN LATERAL room_under_job_cap(j.job_id, %(runtime)s) c
     CROSS JOIN LATERAL capped_queue(j.job_id, %(runtime)s, j.bulk_paused_at IS NULL,
                                     least(%(limit)s::int, c.room)) t
     WHERE j.paused_at IS NULL AND j.capped_operator IS NULL
       AND EXISTS (SELECT FROM tasks WHERE runtime = %(runtime)s AND status = 'Queued')
       AND EXISTS (SELECT FROM tasks
                    WHERE '' || status = 'Queued' AND max_concurrency IS NOT NULL)
     UNION ALL
    SELECT t.task_id, t.bulk, t.queued_at, j.capped_operator, o.room
      FROM jobs j
      LEFT JOIN operators o ON o.operator = j.capped_operator
      LEFT JOIN LATERAL room_under_job_cap(j.job_id, %(runtime)s) c ON true
     CROSS JOIN LATERAL (
           SELECT * FROM uncapped_queue(j.job_id, %(runtime)s, j.bulk_paused_at IS NULL,
                                        least(%(limit)s::int, o.room, c.room))
            UNION ALL
           SELECT * FROM capped_queue(j.job_id, %(runtime)s, j.bulk_paused_at IS NULL,
                                      least(%(limit)s::int, o.room, c.room))
            ORDER BY bulk, queued_at LIMIT least(%(limit)s::int, o.room, c.room)) t
     WHERE j.paused_at IS NULL AND j.capped_operator IS NOT NULL
       AND EXISTS (SELECT FROM tasks WHERE runtime = %(runtime)s AND status = 'Queued')
), placed AS (
    SELECT *, row_number() OVER (PARTITION BY operator ORDER BY bulk, queued_at) AS place
      FROM offered
)
SELECT task_id FROM placed WHERE room IS NULL OR place <= room
 ORDER BY bulk, queued_at
 LIMIT %(limit)s::int
"""


async def find_ready(conn: Conn, runtime: str, limit: int) -> list[UUID]:
    """List tasks of capped jobs and operators that have room, oldest first.

    The tasks are not locked: another claim may take the room before `claim_capped` decides.
    """
    cursor = await conn.execute(_FIND_READY, {"runtime": runtime, "limit": limit})
    return [row[0] for row in await cursor.fetchall()]
