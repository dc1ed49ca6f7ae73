"""What stands between a job and its next task: the work of the jobs above it."""

from dataclasses import dataclass
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.state.db.pool import Conn


@dataclass(frozen=True)
class UpstreamWork:
    """A job above that has something to do, or that could not do it."""

    dag: str
    job: str
    distance: int
    """1: its output is an input of ours."""
    queued: int
    running: int
    retrying: int
    failed: int
    paused_by: str | None


# Every job above, nearest first; counts are over live and unsuccessful rows only.
_ABOVE = """
WITH RECURSIVE above (job_id, distance) AS (
    SELECT d.job_id, 1 FROM job_inputs i JOIN dataset_producers d USING (dataset_uuid)
     WHERE i.revision_id = %(revision_id)s
     UNION
    SELECT d.job_id, a.distance + 1
      FROM above a JOIN jobs j USING (job_id)
      JOIN job_inputs i ON i.revision_id = j.revision_id
      JOIN dataset_producers d USING (dataset_uuid)
     WHERE a.distance < 50
), nearest AS (
    SELECT job_id, min(distance) AS distance FROM above GROUP BY job_id
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


async def above(conn: Conn, revision_id: UUID) -> list[UpstreamWork]:
    """The jobs above a revision that have work or trouble, nearest first."""
    async with conn.cursor(row_factory=class_row(UpstreamWork)) as cursor:
        await cursor.execute(_ABOVE, {"revision_id": revision_id})
        return await cursor.fetchall()
