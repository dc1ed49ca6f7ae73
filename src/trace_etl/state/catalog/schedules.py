"""Read cron sources: what the scheduler needs to know, and nothing else."""

from datetime import datetime
from uuid import UUID

from trace_etl.api.user.dags.schedules import ScheduleItem
from trace_etl.model.errors import NotFound
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all

_LIST = """
SELECT g.name AS dag, j.name AS job, r.source ->> 'schedule' AS schedule,
       coalesce(r.source -> 'options', '{}') AS options
  FROM jobs j JOIN dags g USING (dag_id) JOIN job_revisions r USING (revision_id)
 WHERE j.org_id = %(org_id)s AND j.active AND r.source ->> 'kind' = 'cron'
   AND (g.name, j.name) > (%(after_dag)s, %(after_job)s)
 ORDER BY g.name, j.name
 LIMIT %(limit)s
"""


async def list_schedules(
    conn: Conn, org_id: UUID, _filters: None, *, after: tuple[str, str] | None, limit: int
) -> list[ScheduleItem]:
    """List one page of the cron sources of deployed DAGs. Paused ones are included."""
    after_dag, after_job = after or ("", "")
    values = {"org_id": org_id, "after_dag": after_dag, "after_job": after_job, "limit": limit}
    return await fetch_all(conn, ScheduleItem, _LIST, values)


# A range of one number is a tick of an earlier release.
_LAST_TICK = """
WITH deployed AS (
    SELECT j.job_id FROM jobs j JOIN dags g USING (dag_id)
     WHERE j.org_id = %(org_id)s AND j.active AND g.name = %(dag)s AND j.name = %(job)s
), newest AS (
    SELECT t.partition_key, t.range_start, t.range_end
      FROM tasks t JOIN deployed USING (job_id)
     ORDER BY t.created_at DESC, t.task_id DESC LIMIT 100
), tick AS (
    SELECT CASE WHEN partition_key ~ '^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}Z$'
                THEN partition_key::timestamptz
                WHEN range_start = range_end AND range_start < 253402300800
                THEN to_timestamp(range_start) END AS at
      FROM newest
)
SELECT (SELECT max(at) FROM tick WHERE at <= %(until)s) FROM deployed
"""


async def find_last_tick(
    conn: Conn, org_id: UUID, dag: str, job: str, *, until: datetime
) -> datetime | None:
    """Return the newest tick up to a time, among the newest tasks of a job. Raises NotFound."""
    values = {"org_id": org_id, "dag": dag, "job": job, "until": until}
    row = await (await conn.execute(_LAST_TICK, values)).fetchone()
    if row is None:
        raise NotFound(f"no job {job!r} in a deployed DAG {dag!r}; `trace jobs` lists them")
    return row[0]
