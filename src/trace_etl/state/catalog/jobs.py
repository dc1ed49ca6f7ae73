"""Reading jobs."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.model.errors import NotFound
from trace_etl.state.db.pool import Conn


@dataclass(frozen=True)
class JobFilter:
    """What a listing is about; None: any."""

    dag: str | None = None
    activation: str | None = None
    operator: str | None = None
    runtime: str | None = None
    source_kind: str | None = None
    paused: bool | None = None


@dataclass(frozen=True)
class JobView:
    dag: str
    job: str
    activation: str
    operator: str
    runtime: str
    source_kind: str | None
    schedule: str | None
    source_options: dict[str, Any] | None
    paused_by: str | None
    bulk_paused_by: str | None
    """Who holds its bulk work, whether or not the rest is paused, too."""


_COLUMNS = """
SELECT g.name AS dag, j.name AS job, r.activation, r.operator, r.runtime,
       r.source ->> 'kind' AS source_kind, r.source ->> 'schedule' AS schedule,
       r.source -> 'options' AS source_options, j.paused_by, j.bulk_paused_by
"""
_FROM = """
  FROM jobs j JOIN dags g USING (dag_id) JOIN job_revisions r USING (revision_id)
 WHERE j.org_id = %(org_id)s AND j.active
"""
_LIST = (
    _COLUMNS
    + _FROM
    + """
   AND (%(dag)s::text IS NULL OR g.name = %(dag)s)
   AND (%(activation)s::text IS NULL OR r.activation = %(activation)s)
   AND (%(operator)s::text IS NULL OR r.operator = %(operator)s)
   AND (%(runtime)s::text IS NULL OR r.runtime = %(runtime)s)
   AND (%(source_kind)s::text IS NULL OR r.source ->> 'kind' = %(source_kind)s)
   AND (%(paused)s::boolean IS NULL OR (j.paused_at IS NOT NULL) = %(paused)s)
   AND (g.name, j.name) > (%(after_dag)s, %(after_job)s)
 ORDER BY g.name, j.name
 LIMIT %(limit)s
"""
)


async def listing(
    conn: Conn, org_id: UUID, which: JobFilter, *, after: tuple[str, str] | None, limit: int
) -> list[JobView]:
    """The jobs of the deployed DAGs by name, one page."""
    after_dag, after_job = after or ("", "")
    values = {
        "org_id": org_id,
        **vars(which),
        "after_dag": after_dag,
        "after_job": after_job,
        "limit": limit,
    }
    async with conn.cursor(row_factory=class_row(JobView)) as cursor:
        await cursor.execute(_LIST, values)
        return await cursor.fetchall()


@dataclass(frozen=True)
class JobDetail(JobView):
    revision_id: UUID
    execution_strategy: str
    update_strategy: str
    config: dict[str, Any]
    max_attempts: int
    timeout_seconds: int
    heartbeat_timeout_seconds: int
    priority: str
    max_concurrency: int | None
    max_queue_depth: int | None
    max_queue_age: int | None
    paused_at: datetime | None
    queued: int
    running: int
    oldest_queued_at: datetime | None
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]


# Counts are over live rows only: a job's history does not slow its page down.
_GET = (
    _COLUMNS
    + """
     , r.revision_id, r.execution_strategy, r.update_strategy, r.config, r.max_attempts,
       r.timeout_seconds, r.heartbeat_timeout_seconds, r.priority, r.max_concurrency,
       r.max_queue_depth, r.max_queue_age, j.paused_at,
       (SELECT count(*) FROM tasks t WHERE t.job_id = j.job_id AND t.status = 'Queued') AS queued,
       (SELECT count(*) FROM tasks t WHERE t.job_id = j.job_id AND t.status = 'Running') AS running,
       (SELECT min(t.queued_at) FROM tasks t WHERE t.job_id = j.job_id AND t.status = 'Queued')
           AS oldest_queued_at,
       coalesce((SELECT jsonb_agg(jsonb_build_object(
                            'name', i.name, 'dataset_uuid', i.dataset_uuid, 'where', i.where_map,
                            'dag', fg.name, 'job', fj.name, 'output', d.output_name)
                        ORDER BY i.input_index)
                   FROM job_inputs i JOIN dataset_producers d USING (dataset_uuid)
                   JOIN jobs fj ON fj.job_id = d.job_id JOIN dags fg ON fg.dag_id = fj.dag_id
                  WHERE i.revision_id = r.revision_id), '[]') AS inputs,
       coalesce((SELECT jsonb_agg(jsonb_build_object(
                            'name', o.name, 'dataset_uuid', o.dataset_uuid,
                            'dataset_version', o.dataset_version, 'published', p.name)
                        ORDER BY o.output_index)
                   FROM job_outputs o LEFT JOIN publications p USING (dataset_uuid)
                  WHERE o.revision_id = r.revision_id), '[]') AS outputs
"""
    + _FROM
    + " AND g.name = %(dag)s AND j.name = %(job)s"
)


async def get(conn: Conn, org_id: UUID, dag: str, job: str) -> JobDetail:
    """One job as it is deployed now. Raises NotFound."""
    async with conn.cursor(row_factory=class_row(JobDetail)) as cursor:
        await cursor.execute(_GET, {"org_id": org_id, "dag": dag, "job": job})
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(f"no job {job!r} in a deployed DAG {dag!r}; `trace dags` lists them")
    return found
