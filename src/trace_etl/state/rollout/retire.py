"""Retire the jobs and tasks that a DAG no longer has; requeue tasks whose definition returned."""

from uuid import UUID

from trace_etl.state.db.pool import Conn

_RETIRE_JOBS = """
UPDATE jobs j SET active = false, building_revision_id = NULL
 WHERE j.dag_id = %(dag_id)s AND j.active
   AND NOT EXISTS (SELECT FROM dag_version_jobs m
                    WHERE m.dag_version = %(dag_version)s AND m.job_id = j.job_id)
"""


async def retire_jobs(conn: Conn, dag_id: UUID, dag_version: UUID) -> None:
    """Deactivate the jobs that a version of the DAG does not have."""
    await conn.execute(_RETIRE_JOBS, {"dag_id": dag_id, "dag_version": dag_version})


# Every statement locks tasks in the order of their ids, so that transactions cannot deadlock. The status
# is checked again on the locked row: the task may have ended while this statement waited for the lock.
_RETIRE_TASKS = """
WITH found AS (
    SELECT task_id FROM unwanted_tasks
     WHERE dag_id = %(dag_id)s AND status IN ('Queued', 'Running')
     UNION ALL
    SELECT task_id FROM unwanted_tasks
     WHERE dag_id = %(dag_id)s AND status = 'Failed' AND retry_at IS NOT NULL
), retired AS (
    SELECT t.task_id FROM tasks t JOIN found USING (task_id)
     WHERE NOT t.abandoned
       AND (t.status IN ('Queued', 'Running') OR (t.status = 'Failed' AND t.retry_at IS NOT NULL))
     ORDER BY t.task_id FOR UPDATE OF t
)
UPDATE tasks t
   SET status = CASE t.status WHEN 'Running' THEN t.status ELSE 'Canceled' END,
       finished_at = CASE t.status WHEN 'Running' THEN t.finished_at ELSE now() END,
       cancel_requested = true, abandoned = true, retry_at = NULL, cause = NULL,
       error_message = %(reason)s
  FROM retired r WHERE t.task_id = r.task_id
"""


async def retire_tasks(conn: Conn, dag_id: UUID, *, reason: str = "the DAG was redeployed") -> int:
    """Cancel waiting tasks of definitions that the DAG no longer has; ask running ones to stop.

    Returns the number of tasks. A running attempt receives the request with its next heartbeat. Tasks of
    sources run again with the new definition: nothing else would repeat a tick or a delivery.
    """
    retired = (await conn.execute(_RETIRE_TASKS, {"dag_id": dag_id, "reason": reason})).rowcount
    moved = await (await conn.execute(_MOVE_SOURCE_TASKS, {"dag_id": dag_id})).fetchall()
    if moved:
        await conn.execute(_QUEUE_AGAIN, {"task_ids": [row[0] for row in moved], "reason": reason})
    return retired - len(moved)


_MOVE_SOURCE_TASKS = """
WITH wanted AS (
    SELECT t.task_id, r.revision_id, r.runtime
      FROM jobs j JOIN tasks t ON t.job_id = j.job_id
      JOIN job_revisions r ON r.revision_id = j.revision_id
     WHERE j.dag_id = %(dag_id)s AND j.active AND t.abandoned
       AND r.activation = 'source' AND r.udf ->> 'sha256' IS NOT NULL AND t.status IN ('Canceled', 'Running')
     ORDER BY t.task_id FOR UPDATE OF t
)
UPDATE tasks t SET revision_id = w.revision_id, runtime = w.runtime
  FROM wanted w WHERE t.task_id = w.task_id
RETURNING t.task_id
"""
_QUEUE_AGAIN = "SELECT queue_again(%(task_ids)s, %(reason)s)"

_REQUEUE = """
WITH wanted AS MATERIALIZED (
    SELECT t.task_id
      FROM jobs j JOIN tasks t ON t.job_id = j.job_id
      JOIN job_revisions own ON own.revision_id = t.revision_id
     WHERE j.dag_id = %(dag_id)s AND j.active AND t.abandoned
       AND t.status IN ('Canceled', 'Running')
       AND EXISTS (SELECT FROM job_revisions live
                    WHERE live.revision_id IN (j.revision_id, j.building_revision_id)
                      AND live.generation_hash = own.generation_hash)
       AND (t.dataset_uuid IS NULL OR EXISTS (
            SELECT FROM job_inputs i JOIN datasets d USING (dataset_uuid)
             WHERE i.revision_id = t.revision_id AND i.dataset_uuid = t.dataset_uuid
               AND input_generation(i, d) = t.dataset_version))
     ORDER BY t.task_id FOR UPDATE OF t
)
SELECT queue_again(ARRAY(SELECT task_id FROM wanted), 'the DAG was redeployed')
"""


async def requeue_tasks(conn: Conn, dag_id: UUID) -> int:
    """Queue retired tasks whose definition the DAG has again. Returns their number."""
    row = await (await conn.execute(_REQUEUE, {"dag_id": dag_id})).fetchone()
    return row[0] if row else 0
