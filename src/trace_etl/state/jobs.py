"""Reading jobs."""

from dataclasses import dataclass
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.state.pool import Conn


@dataclass(frozen=True)
class JobView:
    dag: str
    job: str
    activation: str
    operator: str
    runtime: str
    source_kind: str | None
    schedule: str | None
    paused_by: str | None


_LIST = """
SELECT g.name AS dag, j.name AS job, r.activation, r.operator, r.runtime,
       r.source ->> 'kind' AS source_kind, r.source ->> 'schedule' AS schedule, j.paused_by
  FROM jobs j JOIN dags g USING (dag_id) JOIN job_revisions r USING (revision_id)
 WHERE j.org_id = %(org_id)s AND j.active
   AND (%(dag)s::text IS NULL OR g.name = %(dag)s)
   AND (%(source_kind)s::text IS NULL OR r.source ->> 'kind' = %(source_kind)s)
 ORDER BY g.name, j.name
"""


async def listing(
    conn: Conn, org_id: UUID, *, dag: str | None, source_kind: str | None
) -> list[JobView]:
    """The jobs of the deployed DAGs."""
    values = {"org_id": org_id, "dag": dag, "source_kind": source_kind}
    async with conn.cursor(row_factory=class_row(JobView)) as cursor:
        await cursor.execute(_LIST, values)
        return await cursor.fetchall()
