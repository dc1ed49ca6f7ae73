"""Read deployed jobs."""

from dataclasses import dataclass
from uuid import UUID

from trace_etl.api.body import Name
from trace_etl.api.user.dags.jobs import JobDetail, JobItem
from trace_etl.model.dag import Activation, SourceKind
from trace_etl.model.errors import NotFound
from trace_etl.policy.waiting_reasons import explain_job
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all, fetch_dicts
from trace_etl.state.tasks.upstream_work import list_upstream_work


@dataclass(frozen=True)
class WorkFilter:
    """Which jobs or tasks to list. None matches all."""

    dag: Name | None = None
    operator: Name | None = None
    runtime: Name | None = None


@dataclass(frozen=True)
class JobFilter(WorkFilter):
    activation: Activation | None = None
    source_kind: SourceKind | None = None
    paused: bool | None = None


_LIST = """
SELECT g.name AS dag, j.name AS job, r.activation, r.operator, r.runtime,
       r.source ->> 'kind' AS source_kind, r.source ->> 'schedule' AS schedule,
       r.source -> 'options' AS source_options, j.paused_by, j.bulk_paused_by,
       (SELECT count(*) FROM job_failures f WHERE f.job_id = j.job_id) AS failed
  FROM jobs j JOIN dags g USING (dag_id) JOIN job_revisions r USING (revision_id)
 WHERE j.org_id = %(org_id)s AND j.active
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


async def list_jobs(
    conn: Conn, org_id: UUID, filters: JobFilter, *, after: tuple[str, str] | None, limit: int
) -> list[JobItem]:
    """List one page of the jobs of deployed DAGs, by DAG and job name."""
    after_dag, after_job = after or ("", "")
    position = {"after_dag": after_dag, "after_job": after_job}
    values = {"org_id": org_id, **vars(filters), **position, "limit": limit}
    return await fetch_all(conn, JobItem, _LIST, values)


# Counts read live tasks only, so a job's history does not slow the query down.
_GET = """
SELECT g.name AS dag, j.name AS job, r.activation, r.operator, r.runtime,
       r.source ->> 'kind' AS source_kind, r.source ->> 'schedule' AS schedule,
       r.source -> 'options' AS source_options, j.paused_by, j.bulk_paused_by,
       r.revision_id, r.execution_strategy, r.update_strategy, r.config, r.max_attempts,
       r.timeout_seconds, r.heartbeat_timeout_seconds, r.priority, r.max_concurrency,
       r.max_queue_depth, r.max_queue_age, j.paused_at,
       (SELECT count(*) FROM tasks t WHERE t.job_id = j.job_id AND t.status = 'Queued') AS queued,
       (SELECT count(*) FROM tasks t WHERE t.job_id = j.job_id AND t.status = 'Running') AS running,
       (SELECT count(*) FROM tasks t
         WHERE t.job_id = j.job_id AND t.status = 'Failed' AND t.retry_at IS NOT NULL) AS retrying,
       (SELECT count(*) FROM job_failures f WHERE f.job_id = j.job_id) AS failed,
       (SELECT to_jsonb(f) - 'job_id' FROM job_failures f WHERE f.job_id = j.job_id
         ORDER BY f.finished_at DESC NULLS LAST LIMIT 1) AS last_failure,
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
  FROM jobs j JOIN dags g USING (dag_id) JOIN job_revisions r USING (revision_id)
 WHERE j.org_id = %(org_id)s AND j.active
   AND g.name = %(dag)s AND j.name = %(job)s
"""


async def get_job(conn: Conn, org_id: UUID, dag: str, job: str) -> JobDetail:
    """Read one deployed job, with the reason if it runs no task. Raises NotFound."""
    rows = await fetch_dicts(conn, _GET, {"org_id": org_id, "dag": dag, "job": job})
    if not rows:
        raise NotFound(f"no job {job!r} in a deployed DAG {dag!r}; `trace jobs` lists them")
    row = rows[0]
    upstream = await list_upstream_work(conn, row["revision_id"])
    reason = explain_job(
        dag,
        queued=row["queued"],
        running=row["running"],
        paused_by=row["paused_by"],
        upstream=upstream,
    )
    return JobDetail(**row, upstream=upstream, reason=reason)
