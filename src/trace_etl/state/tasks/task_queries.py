"""Reading tasks, canceling them, and waking those that nobody looked at."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from trace_etl.api.body import Name
from trace_etl.api.user.tasks import AttemptItem, Status, TaskItem
from trace_etl.model.errors import NotFound
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import NewestFirstKey, fetch_all, fetch_one, newest_first


class TaskWithFacts(TaskItem):
    """A task as the API returns it, with the facts that explain why it is not running."""

    reason: str | None = None
    """Filled in by the caller, which knows whether workers listen."""
    cancel_requested: bool
    max_concurrency: int | None
    running_in_job: int
    operator_cap: int | None
    running_of_operator: int
    paused_at: datetime | None
    paused_by: str | None


_VIEW = """
SELECT t.task_id, g.name AS dag, j.name AS job, r.operator, t.runtime, t.status, t.attempt,
       t.max_attempts, t.partition_key, t.cursor_value AS cursor, t.worker_id, t.created_at, t.queued_at,
       t.started_at, t.finished_at, t.retry_at, t.cancel_requested,
       t.error_code, t.error_message, t.max_concurrency,
       coalesce(j.paused_at, CASE WHEN t.bulk THEN j.bulk_paused_at END) AS paused_at,
       coalesce(j.paused_by, CASE WHEN t.bulk THEN j.bulk_paused_by END) AS paused_by,
       CASE WHEN t.max_concurrency IS NULL OR t.status <> 'Queued' THEN 0
            ELSE (SELECT count(*) FROM tasks o WHERE o.job_id = t.job_id AND o.status = 'Running')
        END AS running_in_job,
       c.cap AS operator_cap,
       CASE WHEN c.cap IS NULL OR t.status <> 'Queued' THEN 0
            ELSE (SELECT count(*) FROM jobs oj JOIN tasks o USING (job_id)
                   WHERE oj.capped_operator = c.operator AND o.status = 'Running')
        END AS running_of_operator
  FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
  LEFT JOIN operator_caps c ON c.operator = j.capped_operator
  JOIN job_revisions r ON r.revision_id = t.revision_id
"""


@dataclass(frozen=True)
class TaskFilter:
    """Which tasks to list. None matches every task."""

    dag: Name | None = None
    job: Name | None = None
    status: Status | None = None
    operator: Name | None = None
    runtime: Name | None = None
    worker: Name | None = None


_LIST = (
    _VIEW
    + """
 WHERE t.org_id = %(org_id)s
   AND (%(dag)s::text IS NULL OR g.name = %(dag)s)
   AND (%(job)s::text IS NULL OR j.name = %(job)s)
   AND (%(status)s::text IS NULL OR t.status = %(status)s)
   AND (%(operator)s::text IS NULL OR r.operator = %(operator)s)
   AND (%(runtime)s::text IS NULL OR t.runtime = %(runtime)s)
   AND (%(worker)s::text IS NULL OR t.worker_id = %(worker)s)
   AND (%(before)s::timestamptz IS NULL OR (t.created_at, t.task_id) < (%(before)s, %(before_id)s))
 ORDER BY t.created_at DESC, t.task_id DESC
 LIMIT %(limit)s
"""
)


async def list_tasks(
    conn: Conn, org_id: UUID, which: TaskFilter, *, after: NewestFirstKey | None, limit: int
) -> list[TaskWithFacts]:
    """List one page of an org's tasks, newest first."""
    return await fetch_all(conn, TaskWithFacts, _LIST, newest_first(org_id, which, after, limit))


_GET = (
    _VIEW + " WHERE t.task_id = %(task_id)s AND (%(org_id)s::uuid IS NULL OR t.org_id = %(org_id)s)"
)


async def get_task(conn: Conn, org_id: UUID | None, task_id: UUID) -> TaskWithFacts:
    """Read one task. Raises NotFound."""
    found = await fetch_one(conn, TaskWithFacts, _GET, {"org_id": org_id, "task_id": task_id})
    if found is None:
        raise NotFound(f"no task {task_id}")
    return found


_ATTEMPTS = """
SELECT attempt, worker_id, started_at, ended_at, outcome, cause, error_code, error_message
  FROM task_attempts WHERE task_id = %(task_id)s ORDER BY attempt
"""


async def list_attempts(conn: Conn, task_id: UUID) -> list[AttemptItem]:
    """List the attempts of a task that ended, first to last."""
    return await fetch_all(conn, AttemptItem, _ATTEMPTS, {"task_id": task_id})


_CANCEL = """
UPDATE tasks
   SET status = CASE status WHEN 'Running' THEN status ELSE 'Canceled' END,
       finished_at = CASE status WHEN 'Running' THEN finished_at ELSE now() END,
       cause = CASE status WHEN 'Running' THEN cause END,  -- no late reply brings it back
       retry_at = NULL, cancel_requested = true
 WHERE task_id = %(task_id)s AND org_id = %(org_id)s
   AND (status IN ('Queued', 'Running') OR retry_at IS NOT NULL)
RETURNING status
"""


async def cancel(conn: Conn, org_id: UUID, task_id: UUID) -> str | None:
    """Cancel a waiting task, or ask a running one to stop. None: it had ended already."""
    row = await (await conn.execute(_CANCEL, {"task_id": task_id, "org_id": org_id})).fetchone()
    return row[0] if row else None


_WAKE_NEXT = """
WITH job AS (
    SELECT max(max_concurrency) AS cap FROM tasks WHERE job_id = %(job_id)s AND status = 'Queued'
), room AS (
    SELECT greatest(0, job.cap - (SELECT count(*) FROM tasks
                                   WHERE job_id = %(job_id)s AND status = 'Running')) AS n FROM job
)
SELECT outbox_id FROM enqueue(ARRAY(
    SELECT wake_entry(t.task_id, t.runtime) FROM tasks t JOIN jobs j USING (job_id)
     WHERE t.job_id = %(job_id)s AND t.status = 'Queued'
       AND j.capped_operator IS NULL
       AND j.paused_at IS NULL AND NOT (t.bulk AND j.bulk_paused_at IS NOT NULL)
     ORDER BY t.bulk, t.queued_at LIMIT (SELECT least(n, 1000) FROM room)))
"""
# Room under an operator's cap is for any job of that operator, each within its own.
_WAKE_OPERATOR = """
WITH room AS (
    SELECT c.operator, greatest(0, c.cap - (
               SELECT count(*) FROM jobs o JOIN tasks t USING (job_id)
                WHERE o.capped_operator = c.operator AND t.status = 'Running')) AS n
      FROM jobs j JOIN operator_caps c ON c.operator = j.capped_operator
     WHERE j.job_id = %(job_id)s
)
SELECT outbox_id FROM enqueue(ARRAY(
    SELECT wake_entry(t.task_id, t.runtime)
      FROM room
      JOIN jobs j ON j.capped_operator = room.operator AND j.paused_at IS NULL
      JOIN job_revisions r ON r.revision_id = j.revision_id
     CROSS JOIN LATERAL (
           SELECT q.runtime, q.task_id, q.bulk, q.queued_at FROM tasks q
            WHERE q.job_id = j.job_id AND q.status = 'Queued'
              AND NOT (q.bulk AND j.bulk_paused_at IS NOT NULL)
            ORDER BY q.bulk, q.queued_at
            LIMIT least(room.n, greatest(0, coalesce(r.max_concurrency, 2147483647) - (
                      SELECT count(*) FROM tasks o
                       WHERE o.job_id = j.job_id AND o.status = 'Running')))
     ) t
     ORDER BY t.bulk, t.queued_at LIMIT (SELECT least(n, 1000) FROM room)))
"""


async def wake_next(conn: Conn, job_id: UUID) -> None:
    """Wake as many tasks of a capped job, or of its operator, as there is room for."""
    await conn.execute(_WAKE_NEXT, {"job_id": job_id})
    await conn.execute(_WAKE_OPERATOR, {"job_id": job_id})


_WAKE_FORGOTTEN = """
SELECT outbox_id FROM enqueue(ARRAY(
    SELECT wake_entry(t.task_id, t.runtime) FROM tasks t JOIN jobs j USING (job_id)
     WHERE t.runtime = %(runtime)s AND t.status = 'Queued'
       AND t.queued_at < now() - %(older)s::interval
       AND j.paused_at IS NULL AND NOT (t.bulk AND j.bulk_paused_at IS NOT NULL)
     ORDER BY t.bulk, t.queued_at LIMIT %(limit)s))
"""


async def wake_forgotten(conn: Conn, runtime: str, *, older_seconds: int, limit: int) -> int:
    """Ask again for tasks whose wake-up seems lost. Returns how many."""
    values = {"runtime": runtime, "older": f"{older_seconds} seconds", "limit": limit}
    return (await conn.execute(_WAKE_FORGOTTEN, values)).rowcount


async def queued_runtimes(conn: Conn) -> list[str]:
    """The runtimes that have tasks waiting."""
    cursor = await conn.execute("SELECT DISTINCT runtime FROM tasks WHERE status = 'Queued'")
    return [row[0] for row in await cursor.fetchall()]
