"""Retry failed tasks on request: by task, job, DAG or error code, or because a range is triggered again."""

from collections.abc import Sequence
from uuid import UUID

from trace_etl.api.user.retries import FailedTask, RetryRequest
from trace_etl.model.scope import Range
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all

_FIND = """
SELECT task_id, dag, job, partition_key, cursor, attempt, error_code, error_message, is_retired
  FROM failed_tasks
 WHERE org_id = %(org_id)s
   AND (%(task_ids)s::uuid[] IS NULL OR task_id = ANY(%(task_ids)s))
   AND (%(dag)s::text IS NULL OR dag = %(dag)s)
   AND (%(job)s::text IS NULL OR job = %(job)s)
   AND (%(error_code)s::text IS NULL OR error_code = %(error_code)s)
 ORDER BY dag, job, task_id
"""


async def find_failed(conn: Conn, org_id: UUID, request: RetryRequest) -> list[FailedTask]:
    """List the failed tasks that a request asks for, also those that wait for their own retry."""
    values = request.model_dump(exclude={"dry_run"}) | {"org_id": org_id}
    return await fetch_all(conn, FailedTask, _FIND, values)


# Tasks are locked in the order of their ids, so that transactions cannot deadlock. The status is checked on
# the locked row. The lease stays: a late completion still counts until the next attempt starts.
_RETRY = """
WITH chosen AS (
    SELECT t.task_id, r.max_attempts
      FROM tasks t JOIN job_revisions r USING (revision_id)
     WHERE t.task_id = ANY(%(task_ids)s) AND t.status = 'Failed'
     ORDER BY t.task_id FOR UPDATE OF t
)
UPDATE tasks t
   SET retry_at = now(), finished_at = NULL, max_attempts = t.attempt + c.max_attempts
  FROM chosen c WHERE t.task_id = c.task_id
RETURNING t.task_id
"""


async def retry(conn: Conn, task_ids: Sequence[UUID]) -> set[UUID]:
    """Make failed tasks due for their next attempt, with as many attempts as a new task has.

    Returns the tasks that are retried: a task that no longer is Failed is left out.
    """
    rows = await (await conn.execute(_RETRY, {"task_ids": list(task_ids)})).fetchall()
    return {row[0] for row in rows}


_FIND_DOWNSTREAM = """
WITH RECURSIVE downstream (job_id) AS (
    SELECT %(job_id)s::uuid
     UNION
    SELECT j.job_id
      FROM downstream d
      JOIN dataset_producers p USING (job_id)
      JOIN job_inputs i ON i.dataset_uuid = p.dataset_uuid
      JOIN jobs j ON j.active AND i.revision_id IN (j.revision_id, j.building_revision_id)
)
SELECT t.task_id
  FROM downstream JOIN tasks t USING (job_id)
 WHERE t.status = 'Failed' AND t.retry_at IS NULL
   AND t.range_start <= %(end)s AND t.range_end >= %(start)s
   AND NOT EXISTS (SELECT FROM unwanted_tasks u WHERE u.task_id = t.task_id)
"""


async def retry_downstream(conn: Conn, job_id: UUID, span: Range) -> list[UUID]:
    """Retry permanently failed tasks of a source's consumers, direct and indirect, in a range.

    Returns the tasks.
    """
    values = {"job_id": job_id, "start": span.start, "end": span.end}
    rows = await (await conn.execute(_FIND_DOWNSTREAM, values)).fetchall()
    return sorted(await retry(conn, [row[0] for row in rows]))


_FIND_CAUSED = """
SELECT t.task_id
  FROM caused_work(%(dag_id)s, ARRAY[%(event_id)s::uuid], '{}') w JOIN tasks t USING (task_id)
 WHERE t.status = 'Failed' AND t.retry_at IS NULL
   AND NOT EXISTS (SELECT FROM unwanted_tasks u WHERE u.task_id = t.task_id)
"""


async def retry_caused(conn: Conn, dag_id: UUID, event_id: UUID) -> list[UUID]:
    """Retry permanently failed tasks that an event caused in its DAG. Returns the tasks."""
    values = {"dag_id": dag_id, "event_id": event_id}
    rows = await (await conn.execute(_FIND_CAUSED, values)).fetchall()
    return sorted(await retry(conn, [row[0] for row in rows]))
