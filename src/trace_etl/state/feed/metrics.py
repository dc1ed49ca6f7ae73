"""Read the metrics of Postgres state. Queries read only live rows, so history does not slow them down."""

from dataclasses import dataclass
from uuid import UUID

from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all


@dataclass(frozen=True)
class QueuedTasks:
    dag: str
    job: str
    runtime: str
    bulk: bool
    depth: int
    age: float


_QUEUES = """
SELECT g.name AS dag, j.name AS job, q.runtime, q.bulk, q.depth, q.age
  FROM (SELECT job_id, runtime, bulk, count(*) AS depth,
               extract(epoch FROM now() - min(queued_at))::float8 AS age
          FROM tasks WHERE status = 'Queued' AND org_id = %(org_id)s
         GROUP BY job_id, runtime, bulk) q
  JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
"""


async def queues(conn: Conn, org_id: UUID) -> list[QueuedTasks]:
    """Count queued tasks by job and runtime."""
    return await fetch_all(conn, QueuedTasks, _QUEUES, {"org_id": org_id})


@dataclass(frozen=True)
class RunningTasks:
    dag: str
    job: str
    operator: str
    count: int


_RUNNING = """
SELECT g.name AS dag, j.name AS job, r.operator, n.count
  FROM (SELECT job_id, revision_id, count(*) AS count
          FROM tasks WHERE status = 'Running' AND org_id = %(org_id)s
         GROUP BY job_id, revision_id) n
  JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
  JOIN job_revisions r ON r.revision_id = n.revision_id
"""


async def running(conn: Conn, org_id: UUID) -> list[RunningTasks]:
    """Count running tasks by job and operator."""
    return await fetch_all(conn, RunningTasks, _RUNNING, {"org_id": org_id})


_RETRYING = """
SELECT g.name, j.name, n.count
  FROM (SELECT job_id, count(*) AS count FROM tasks
         WHERE retry_at IS NOT NULL AND org_id = %(org_id)s GROUP BY job_id) n
  JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
"""


async def retrying(conn: Conn, org_id: UUID) -> list[tuple[str, str, int]]:
    """Count the tasks that wait for their next attempt, by DAG and job."""
    cursor = await conn.execute(_RETRYING, {"org_id": org_id})
    return [(row[0], row[1], row[2]) for row in await cursor.fetchall()]


_PAUSED = """
SELECT g.name, j.name, p.tier, p.reason, p.by_name
  FROM pauses p JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
 WHERE j.org_id = %(org_id)s
"""


async def paused(conn: Conn, org_id: UUID) -> list[tuple[str, str, str, str, str]]:
    """List pauses: DAG, job, tier, reason, and what paused the job."""
    cursor = await conn.execute(_PAUSED, {"org_id": org_id})
    return [(row[0], row[1], row[2], row[3], row[4]) for row in await cursor.fetchall()]


_OUTBOX = """
SELECT kind, failed_at IS NOT NULL, count(*),
       extract(epoch FROM now() - min(created_at))::float8
  FROM outbox_with_org WHERE org_id = %(org_id)s GROUP BY 1, 2
"""


async def outbox(conn: Conn, org_id: UUID) -> list[tuple[str, bool, int, float]]:
    """Count outbox rows: kind, whether failed permanently, count, age of the oldest."""
    cursor = await conn.execute(_OUTBOX, {"org_id": org_id})
    return [(row[0], row[1], row[2], row[3]) for row in await cursor.fetchall()]


_UNUSED_STORAGE = """
SELECT kind, count(*), coalesce(sum(bytes), 0)::bigint
  FROM unused_prefixes WHERE org_id = %(org_id)s GROUP BY kind
"""


async def unused_storage(conn: Conn, org_id: UUID) -> list[tuple[str, int, int]]:
    """Count unused prefixes: kind, prefixes, bytes."""
    cursor = await conn.execute(_UNUSED_STORAGE, {"org_id": org_id})
    return [(row[0], row[1], row[2]) for row in await cursor.fetchall()]
