"""Cancel tasks on request: one, or all that a request chooses."""

from uuid import UUID

from trace_etl.api.user.tasks.cancellations import CancelGroup, CancelRequest
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all

_CANCEL_ONE = """
UPDATE tasks
   SET status = CASE status WHEN 'Running' THEN status ELSE 'Canceled' END,
       finished_at = CASE status WHEN 'Running' THEN finished_at ELSE now() END,
       cause = CASE status WHEN 'Running' THEN cause END,  -- so a late completion is refused
       retry_at = NULL, cancel_requested = true
 WHERE task_id = %(task_id)s AND org_id = %(org_id)s
   AND (status IN ('Queued', 'Running') OR retry_at IS NOT NULL)
RETURNING status
"""


async def cancel_task(conn: Conn, org_id: UUID, task_id: UUID) -> str | None:
    """Cancel a waiting task, or ask a running one to stop. Returns None if it has ended already."""
    values = {"task_id": task_id, "org_id": org_id}
    row = await (await conn.execute(_CANCEL_ONE, values)).fetchone()
    return row[0] if row else None


_PREVIEW = """
SELECT g.name AS dag, j.name AS job, t.status, t.error_code, count(*) AS tasks
  FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
 WHERE t.org_id = %(org_id)s
   AND is_chosen_to_cancel(t, g.name, j.name, %(task_ids)s, %(dag)s, %(job)s, %(status)s,
                           %(error_code)s)
 GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""
# Tasks are locked in the order of their ids, so that transactions cannot deadlock.
_CANCEL = """
WITH chosen AS (
    SELECT t.task_id, g.name AS dag, j.name AS job, t.status, t.error_code
      FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
     WHERE t.org_id = %(org_id)s
       AND is_chosen_to_cancel(t, g.name, j.name, %(task_ids)s, %(dag)s, %(job)s, %(status)s,
                               %(error_code)s)
     ORDER BY t.task_id FOR UPDATE OF t
), canceled AS (
    UPDATE tasks t
       SET status = CASE c.status WHEN 'Running' THEN t.status ELSE 'Canceled' END,
           finished_at = CASE c.status WHEN 'Running' THEN t.finished_at ELSE now() END,
           cause = CASE c.status WHEN 'Running' THEN t.cause END,
           retry_at = NULL, cancel_requested = true
      FROM chosen c WHERE t.task_id = c.task_id
    RETURNING c.dag, c.job, c.status, c.error_code
)
SELECT dag, job, status, error_code, count(*) AS tasks FROM canceled
 GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""


async def preview(conn: Conn, org_id: UUID, request: CancelRequest) -> list[CancelGroup]:
    """Count the tasks that a request would cancel, by job, status and error."""
    return await fetch_all(conn, CancelGroup, _PREVIEW, _make_values(org_id, request))


async def cancel(conn: Conn, org_id: UUID, request: CancelRequest) -> list[CancelGroup]:
    """Cancel the waiting tasks that a request chooses, and ask the running ones to stop.

    Returns the numbers of tasks by job, status before, and error.
    """
    return await fetch_all(conn, CancelGroup, _CANCEL, _make_values(org_id, request))


def _make_values(org_id: UUID, request: CancelRequest) -> dict[str, object]:
    return {"org_id": org_id, **request.model_dump(exclude={"dry_run"})}
