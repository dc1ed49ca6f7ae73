"""How much waits and runs: by job for those with limits, and by operator."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.state.db.pool import Conn


@dataclass(frozen=True)
class QueueView:
    """A queue that has limits, or that pushes back."""

    dag: str
    job: str
    max_queue_depth: int | None
    max_queue_age: int | None
    normal: int
    bulk: int
    oldest_queued_at: datetime | None
    sheds: Literal["bulk", "normal"] | None
    reason: Literal["depth", "age"] | None
    measured: int | None
    threshold: int | None
    since: datetime | None
    pausing: int


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


async def queues(conn: Conn, org_id: UUID) -> list[QueueView]:
    """The queues that have limits, or push back."""
    async with conn.cursor(row_factory=class_row(QueueView)) as cursor:
        await cursor.execute(_QUEUES, {"org_id": org_id})
        return await cursor.fetchall()


@dataclass(frozen=True)
class OperatorLoad:
    operator: str
    queued: int
    running: int


_OPERATORS = """
SELECT r.operator, count(*) FILTER (WHERE t.status = 'Queued') AS queued,
       count(*) FILTER (WHERE t.status = 'Running') AS running
  FROM tasks t JOIN job_revisions r USING (revision_id)
 WHERE t.status IN ('Queued', 'Running') AND t.org_id = %(org_id)s
 GROUP BY r.operator ORDER BY r.operator
"""


async def operators(conn: Conn, org_id: UUID) -> list[OperatorLoad]:
    """What waits and runs of each operator: live rows only, whatever the history."""
    async with conn.cursor(row_factory=class_row(OperatorLoad)) as cursor:
        await cursor.execute(_OPERATORS, {"org_id": org_id})
        return await cursor.fetchall()


_DEFERRED = """
SELECT count(*) FROM deferred_events d JOIN jobs j USING (job_id)
 WHERE j.org_id = %(org_id)s
"""


async def deferred(conn: Conn, org_id: UUID) -> int:
    """How many events wait for a paused job to go on."""
    row = await (await conn.execute(_DEFERRED, {"org_id": org_id})).fetchone()
    return row[0] if row else 0
