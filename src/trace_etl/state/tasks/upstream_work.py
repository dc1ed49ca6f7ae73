"""Read the unfinished work of the jobs upstream of a job."""

from uuid import UUID

from trace_etl.api.user.dags.jobs import UpstreamWork
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all

# The counts read only queued, running and failed tasks, which are few.
_UPSTREAM_WORK = """
WITH RECURSIVE upstream (job_id, distance) AS (
    SELECT d.job_id, 1 FROM job_inputs i JOIN dataset_producers d USING (dataset_uuid)
     WHERE i.revision_id = %(revision_id)s
     UNION
    SELECT d.job_id, a.distance + 1
      FROM upstream a JOIN jobs j USING (job_id)
      JOIN job_inputs i ON i.revision_id = j.revision_id
      JOIN dataset_producers d USING (dataset_uuid)
     WHERE a.distance < 50
), nearest AS (
    SELECT job_id, min(distance) AS distance FROM upstream GROUP BY job_id
)
SELECT g.name AS dag, j.name AS job, n.distance, w.queued, w.running, w.retrying, w.failed,
       j.paused_by
  FROM nearest n JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
  JOIN job_revisions r ON r.revision_id = j.revision_id
 CROSS JOIN LATERAL (
       SELECT (SELECT count(*) FROM tasks t WHERE t.job_id = j.job_id AND t.status = 'Queued')
                  AS queued,
              (SELECT count(*) FROM tasks t WHERE t.job_id = j.job_id AND t.status = 'Running')
                  AS running,
              (SELECT count(*) FROM tasks t
                WHERE t.job_id = j.job_id AND t.status = 'Failed' AND t.retry_at IS NOT NULL)
                  AS retrying,
              (SELECT count(*) FROM tasks t JOIN job_revisions q USING (revision_id)
                WHERE t.job_id = j.job_id AND t.status = 'Failed' AND t.retry_at IS NULL
                  AND q.generation_hash = r.generation_hash) AS failed
 ) w
 WHERE j.active AND (w.queued + w.running + w.retrying + w.failed > 0 OR j.paused_at IS NOT NULL)
 ORDER BY n.distance, g.name, j.name
 LIMIT 20
"""


async def list_upstream_work(conn: Conn, revision_id: UUID) -> list[UpstreamWork]:
    """List the jobs upstream of a revision that have unfinished or failed work, nearest first."""
    return await fetch_all(conn, UpstreamWork, _UPSTREAM_WORK, {"revision_id": revision_id})
