"""Read how many tasks wait and run: by job for queues with limits, and by operator."""

from uuid import UUID

from trace_etl.api.user.tasks.pressure import OperatorItem, QueueItem
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all

_QUEUES = """
SELECT g.name AS dag, j.name AS job, r.max_queue_depth, r.max_queue_age, q.normal, q.bulk,
       q.oldest_queued_at, CASE t.level WHEN 1 THEN 'bulk' WHEN 2 THEN 'normal' END AS sheds,
       t.reason, t.measured, t.threshold, t.since,
       (SELECT count(*) FROM pauses p WHERE p.by_job_id = j.job_id) AS pausing
  FROM jobs j JOIN dags g USING (dag_id) JOIN job_revisions r ON r.revision_id = j.revision_id
  LEFT JOIN trips t ON t.job_id = j.job_id
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE NOT bulk) AS normal, count(*) FILTER (WHERE bulk) AS bulk,
              min(queued_at) AS oldest_queued_at
         FROM tasks WHERE job_id = j.job_id AND status = 'Queued') q
 WHERE j.org_id = %(org_id)s
   AND (t.job_id IS NOT NULL
        OR (j.active AND (r.max_queue_depth IS NOT NULL OR r.max_queue_age IS NOT NULL)))
 ORDER BY g.name, j.name
"""


async def list_queues(conn: Conn, org_id: UUID) -> list[QueueItem]:
    """List the queues that have limits or exert backpressure."""
    return await fetch_all(conn, QueueItem, _QUEUES, {"org_id": org_id})


_OPERATORS = """
SELECT r.operator, count(*) FILTER (WHERE t.status = 'Queued') AS queued,
       count(*) FILTER (WHERE t.status = 'Running') AS running,
       (SELECT c.cap FROM operator_caps c WHERE c.operator = r.operator) AS cap
  FROM tasks t JOIN job_revisions r USING (revision_id)
 WHERE t.status IN ('Queued', 'Running') AND t.org_id = %(org_id)s
 GROUP BY r.operator ORDER BY r.operator
"""


async def list_operators(conn: Conn, org_id: UUID) -> list[OperatorItem]:
    """List the queued and running tasks of each operator. Reads no ended tasks."""
    return await fetch_all(conn, OperatorItem, _OPERATORS, {"org_id": org_id})


_COUNT_DEFERRED = """
SELECT count(*) FROM deferred_events d JOIN jobs j USING (job_id)
 WHERE j.org_id = %(org_id)s
"""


async def count_deferred_events(conn: Conn, org_id: UUID) -> int:
    """Count the events that wait until a paused job resumes."""
    row = await (await conn.execute(_COUNT_DEFERRED, {"org_id": org_id})).fetchone()
    return row[0] if row else 0
