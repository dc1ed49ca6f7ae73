"""Read tasks, and enqueue wake-ups for queued ones."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic import AwareDatetime

from trace_etl.api.body import Name
from trace_etl.api.user.tasks.tasks import AttemptItem, TaskDefinition, TaskItem
from trace_etl.model.errors import NotFound
from trace_etl.model.task import TaskStatus
from trace_etl.policy.waiting_reasons import TaskFacts
from trace_etl.state.catalog.jobs import WorkFilter
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import (
    NewestFirstKey,
    fetch_all,
    fetch_dicts,
    fetch_one,
    newest_first_values,
)


class TaskWithFacts(TaskItem, TaskFacts):
    """A task as the API returns it, with the facts that explain why it is not running."""

    reason: str | None = None
    """Set by the caller, which knows whether the runtime has workers."""


@dataclass(frozen=True)
class TaskFilter(WorkFilter):
    job: Name | None = None
    status: TaskStatus | None = None
    worker: Name | None = None
    error_code: Name | None = None
    retrying: bool | None = None
    """Whether a failed task will run again."""
    finished_after: AwareDatetime | None = None
    invalidation_id: UUID | None = None
    """Tasks that build again what this invalidation marked."""


_LIST = """
SELECT *, explain_hold(task_id) AS held_by FROM task_details
 WHERE org_id = %(org_id)s
   AND (%(dag)s::text IS NULL OR dag = %(dag)s)
   AND (%(job)s::text IS NULL OR job = %(job)s)
   AND (%(status)s::text IS NULL OR status = %(status)s)
   AND (%(operator)s::text IS NULL OR operator = %(operator)s)
   AND (%(runtime)s::text IS NULL OR runtime = %(runtime)s)
   AND (%(worker)s::text IS NULL OR worker_id = %(worker)s)
   AND (%(error_code)s::text IS NULL OR error_code = %(error_code)s)
   AND (%(retrying)s::boolean IS NULL OR (retry_at IS NOT NULL) = %(retrying)s)
   AND (%(finished_after)s::timestamptz IS NULL OR finished_at > %(finished_after)s)
   AND (%(invalidation_id)s::uuid IS NULL OR task_id IN (
        SELECT c.task_id FROM invalidation_consumers c
         WHERE c.invalidation_id = %(invalidation_id)s))
   AND (%(before)s::timestamptz IS NULL OR (created_at, task_id) < (%(before)s, %(before_id)s))
 ORDER BY created_at DESC, task_id DESC
 LIMIT %(limit)s
"""


async def list_tasks(
    conn: Conn, org_id: UUID, filters: TaskFilter, *, after: NewestFirstKey | None, limit: int
) -> list[TaskWithFacts]:
    """List one page of an org's tasks, newest first."""
    return await fetch_all(
        conn, TaskWithFacts, _LIST, newest_first_values(org_id, filters, after, limit)
    )


_GET = """
SELECT *, explain_hold(task_id) AS held_by FROM task_details
 WHERE task_id = %(task_id)s AND (%(org_id)s::uuid IS NULL OR org_id = %(org_id)s)
"""


async def get_task(conn: Conn, org_id: UUID | None, task_id: UUID) -> TaskWithFacts:
    """Read one task, of any org if `org_id` is None. Raises NotFound."""
    task = await fetch_one(conn, TaskWithFacts, _GET, {"org_id": org_id, "task_id": task_id})
    if task is None:
        raise NotFound(f"no task {task_id}; `trace tasks` lists them")
    return task


_PAYLOAD = """
SELECT range_start AS start, range_end AS end, parameters, invalidation_id, bulk
  FROM tasks WHERE task_id = %(task_id)s
"""
_DEFINITION = """
SELECT r.revision_id, r.revision_id = j.revision_id IS TRUE AS is_current, r.config,
       r.execution_strategy, r.update_strategy, r.partition_by, r.secrets,
       r.udf ->> 'bundle' AS bundle,
       (SELECT v.dag_version FROM dag_version_jobs m JOIN dag_versions v USING (dag_version)
         WHERE m.job_id = r.job_id AND m.revision_id = r.revision_id
         ORDER BY v.created_at DESC LIMIT 1) AS dag_version,
       (SELECT coalesce(json_agg(json_build_object(
                   'name', i.name, 'dag', w.dag, 'job', w.job, 'output', w.output,
                   'dataset', p.name, 'where', i.where_map) ORDER BY i.input_index), '[]')
          FROM job_inputs i LEFT JOIN publications p USING (dataset_uuid)
          LEFT JOIN LATERAL (
               SELECT g.name AS dag, o.name AS job, w.output_name AS output
                 FROM datasets d JOIN dataset_producers w USING (dataset_uuid)
                 JOIN jobs o ON o.job_id = d.job_id AND o.job_id = w.job_id
                 JOIN dags g ON g.dag_id = o.dag_id
                WHERE d.dataset_uuid = i.dataset_uuid) w ON true
         WHERE i.revision_id = r.revision_id) AS inputs
  FROM tasks t JOIN job_revisions r USING (revision_id) JOIN jobs j ON j.job_id = r.job_id
 WHERE t.task_id = %(task_id)s
"""


async def get_payload(conn: Conn, task_id: UUID) -> dict[str, Any]:
    """Read what a task works on, as the fields of `TaskDetail`, with the definition that it runs.

    Neither has tokens or values of secrets: those exist in the answer to a claim and in workers only.
    """
    (payload,) = await fetch_dicts(conn, _PAYLOAD, {"task_id": task_id})
    definition = await fetch_one(conn, TaskDefinition, _DEFINITION, {"task_id": task_id})
    return {**payload, "definition": definition}


_ATTEMPTS = """
SELECT attempt, worker_id, started_at, ended_at, outcome, cause, error_code, error_message,
       isolation, coalesce(outputs, '[]') AS outputs
  FROM task_attempts WHERE task_id = %(task_id)s ORDER BY attempt
"""


async def list_attempts(conn: Conn, task_id: UUID) -> list[AttemptItem]:
    """List the ended attempts of a task, first to last."""
    return await fetch_all(conn, AttemptItem, _ATTEMPTS, {"task_id": task_id})


_WAKE_CAPPED_JOB = """
WITH job AS (
    SELECT max(max_concurrency) AS cap FROM tasks WHERE job_id = %(job_id)s AND status = 'Queued'
), room AS (
    SELECT greatest(0, job.cap - (SELECT count(*) FROM tasks
                                   WHERE job_id = %(job_id)s AND status = 'Running')) AS n FROM job
)
SELECT outbox_id FROM enqueue(ARRAY(
    SELECT wake_entry(t.task_id, t.runtime) FROM tasks t JOIN jobs j USING (job_id)
     WHERE t.job_id = %(job_id)s AND t.status = 'Queued'
       AND j.capped_operator IS NULL AND NOT is_paused(j, t.bulk) AND NOT is_held_by_check(t)
     ORDER BY t.bulk, t.queued_at LIMIT (SELECT least(n, 1000) FROM room)))
"""
# The oldest tasks of all jobs of an operator get the room under its cap, within the cap of each job.
_WAKE_CAPPED_OPERATOR = """
WITH room AS (
    SELECT c.operator, c.room AS n
      FROM jobs j JOIN room_under_operator_caps c ON c.operator = j.capped_operator
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
              AND NOT (q.bulk AND j.bulk_paused_at IS NOT NULL) AND NOT is_held_by_check(q)
            ORDER BY q.bulk, q.queued_at
            LIMIT least(room.n, greatest(0, coalesce(r.max_concurrency, 2147483647) - (
                      SELECT count(*) FROM tasks o
                       WHERE o.job_id = j.job_id AND o.status = 'Running')))
     ) t
     ORDER BY t.bulk, t.queued_at LIMIT (SELECT least(n, 1000) FROM room)))
"""


async def wake_next(conn: Conn, job_id: UUID) -> None:
    """Wake as many tasks of a capped job, or of its capped operator, as the cap allows."""
    await conn.execute(_WAKE_CAPPED_JOB, {"job_id": job_id})
    await conn.execute(_WAKE_CAPPED_OPERATOR, {"job_id": job_id})


_WAKE_OVERDUE = """
SELECT outbox_id FROM enqueue(ARRAY(
    SELECT wake_entry(t.task_id, t.runtime) FROM tasks t JOIN jobs j USING (job_id)
     WHERE t.runtime = %(runtime)s AND t.status = 'Queued'
       AND t.queued_at < now() - %(older)s::interval
       AND NOT is_paused(j, t.bulk) AND NOT is_held_by_check(t)
     ORDER BY t.bulk, t.queued_at LIMIT %(limit)s))
"""


async def wake_overdue(conn: Conn, runtime: str, *, older_seconds: int, limit: int) -> int:
    """Enqueue wake-ups for tasks that waited too long: their first wake-up may be lost.

    Returns the number of tasks.
    """
    values = {"runtime": runtime, "older": f"{older_seconds} seconds", "limit": limit}
    return (await conn.execute(_WAKE_OVERDUE, values)).rowcount


async def list_queued_runtimes(conn: Conn) -> list[str]:
    cursor = await conn.execute("SELECT DISTINCT runtime FROM tasks WHERE status = 'Queued'")
    return [row[0] for row in await cursor.fetchall()]
