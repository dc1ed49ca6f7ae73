"""Retry failed tasks on request: by task, job, DAG or error code, or because a range is triggered again.

A range that is triggered again also queues its canceled tasks.
"""

from collections.abc import Sequence
from uuid import UUID

from psycopg.errors import UniqueViolation

from trace_etl.api.user.tasks.retries import FailedTask, RetryRequest
from trace_etl.model.errors import Conflict
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


# The steps of a backfill lock it before its tasks, so this does too. A step that runs now may still record a
# failure, so backfills whose chunk has no result yet are locked as well.
_LOCK_BACKFILLS = """
SELECT FROM backfills
 WHERE state IN ('running', 'failed') AND backfill_id IN (
       SELECT c.backfill_id FROM backfill_chunks c
        WHERE c.task_id = ANY(%(task_ids)s) AND c.state IN ('created', 'failed'))
 ORDER BY backfill_id FOR UPDATE
"""
# Only one backfill of the same range can run: one that runs already, or else the newest.
_REOPEN_BACKFILLS = """
WITH newest AS (
    SELECT DISTINCT ON (job_id, generation_hash, range_start, range_end, chunk, force) backfill_id
      FROM backfills b
     WHERE state = 'failed' AND backfill_id IN (
           SELECT c.backfill_id FROM backfill_chunks c
            WHERE c.task_id = ANY(%(task_ids)s) AND c.state = 'failed')
       AND NOT EXISTS (
           SELECT FROM backfills o
            WHERE o.state = 'running'
              AND (o.job_id, o.generation_hash, o.range_start, o.range_end, o.chunk, o.force)
                = (b.job_id, b.generation_hash, b.range_start, b.range_end, b.chunk, b.force))
     ORDER BY job_id, generation_hash, range_start, range_end, chunk, force, created_at DESC
)
UPDATE backfills b
   SET state = 'running', ended_at = NULL, why = '', rounds = rounds + 1, started_at = now()
  FROM newest n WHERE b.backfill_id = n.backfill_id
"""
_REOPEN_CHUNKS = """
UPDATE backfill_chunks c SET state = 'created', settled_at = NULL
  FROM backfills b
 WHERE c.task_id = ANY(%(task_ids)s) AND c.state = 'failed'
   AND b.backfill_id = c.backfill_id AND b.state = 'running'
"""


async def retry(conn: Conn, task_ids: Sequence[UUID]) -> set[UUID]:
    """Make failed tasks due for their next attempt, with as many attempts as a new task has.

    Failed backfills of these tasks run again and wait for them. Returns the tasks that are retried: a task
    that no longer is Failed is left out. Raises Conflict.
    """
    if not task_ids:
        return set()
    values = {"task_ids": list(task_ids)}
    await conn.execute(_LOCK_BACKFILLS, values)
    retried = [row[0] for row in await (await conn.execute(_RETRY, values)).fetchall()]
    try:
        await conn.execute(_REOPEN_BACKFILLS, {"task_ids": retried})
    except UniqueViolation as error:
        raise Conflict("a backfill of the same range started meanwhile; retry again") from error
    await conn.execute(_REOPEN_CHUNKS, {"task_ids": retried})
    return set(retried)


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
SELECT t.task_id, t.status
  FROM downstream JOIN tasks t USING (job_id)
 WHERE has_stopped(t) AND t.range_start <= %(end)s AND t.range_end >= %(start)s
"""


async def retry_downstream(conn: Conn, job_id: UUID, span: Range) -> list[UUID]:
    """Run tasks of a range again that failed or were canceled, of all jobs downstream of a source.

    Returns the tasks that run again.
    """
    values = {"job_id": job_id, "start": span.start, "end": span.end}
    return await _run_again(conn, await (await conn.execute(_FIND_DOWNSTREAM, values)).fetchall())


_FIND_CAUSED = """
SELECT t.task_id, t.status
  FROM caused_work(%(dag_id)s, %(event_ids)s::uuid[], %(task_ids)s::uuid[]) w
  JOIN tasks t USING (task_id)
 WHERE has_stopped(t)
"""


async def retry_caused(
    conn: Conn, dag_id: UUID, *, event_ids: Sequence[UUID] = (), task_ids: Sequence[UUID] = ()
) -> list[UUID]:
    """Run tasks again that failed or were canceled: these tasks, and all that the roots caused in their DAG.

    Returns the tasks that run again.
    """
    values = {"dag_id": dag_id, "event_ids": list(event_ids), "task_ids": list(task_ids)}
    return await _run_again(conn, await (await conn.execute(_FIND_CAUSED, values)).fetchall())


# The status is checked on the locked rows.
_QUEUE_CANCELED = """
WITH wanted AS MATERIALIZED (
    SELECT t.task_id FROM tasks t
     WHERE t.task_id = ANY(%(task_ids)s) AND has_stopped(t) AND t.status <> 'Failed'
     ORDER BY t.task_id FOR UPDATE
), queued AS (
    SELECT queue_again(ARRAY(SELECT task_id FROM wanted), 'the scope was triggered again') AS n
)
SELECT task_id FROM wanted CROSS JOIN queued
"""


async def _run_again(conn: Conn, stopped: Sequence[tuple[UUID, str]]) -> list[UUID]:
    """Retry the failed ones of some tasks and queue the canceled ones. Returns those that run again."""
    failed = [task_id for task_id, status in stopped if status == "Failed"]
    values = {"task_ids": [task_id for task_id, status in stopped if status != "Failed"]}
    queued = await (await conn.execute(_QUEUE_CANCELED, values)).fetchall()
    return sorted({*await retry(conn, failed), *(row[0] for row in queued)})
