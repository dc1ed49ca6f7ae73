"""Read the state of everything. Queries read live rows and the last hour, not the whole history."""

from dataclasses import dataclass
from uuid import UUID

from trace_etl.api.user.views.overview import FailureGroup, FollowedChain, MinuteItem
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all, fetch_dicts

_TOTALS = """
SELECT (SELECT count(*) FROM dags WHERE org_id = %(org_id)s AND dag_version IS NOT NULL) AS dags,
       (SELECT count(*) FROM jobs WHERE org_id = %(org_id)s AND active) AS jobs,
       (SELECT count(*) FROM tasks WHERE org_id = %(org_id)s AND retry_at IS NOT NULL) AS retrying,
       (SELECT count(*) FROM job_failures f JOIN jobs j USING (job_id)
         WHERE j.org_id = %(org_id)s AND j.active) AS failed,
       (SELECT count(*) FROM jobs WHERE org_id = %(org_id)s AND active
           AND (paused_at IS NOT NULL OR bulk_paused_at IS NOT NULL)) AS paused,
       (SELECT count(*) FROM outbox_with_org
         WHERE org_id = %(org_id)s AND failed_at IS NOT NULL) AS outbox_failed,
       (SELECT count(*) FROM buffer_publishes
         WHERE org_id = %(org_id)s AND failed_at IS NOT NULL) AS batches_failed
"""


async def get_totals(conn: Conn, org_id: UUID) -> dict[str, int]:
    """Count DAGs and jobs, and what failed."""
    (row,) = await fetch_dicts(conn, _TOTALS, {"org_id": org_id})
    return row


# By job: the index of live tasks begins with it and has all columns, so no row of a task is read.
_LIVE = """
SELECT r.runtime, sum(t.queued)::bigint AS queued, sum(t.running)::bigint AS running
  FROM jobs j
  JOIN job_revisions r ON r.revision_id = coalesce(j.revision_id, j.building_revision_id)
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE status = 'Queued') AS queued,
              count(*) FILTER (WHERE status = 'Running') AS running
         FROM tasks WHERE job_id = j.job_id AND status IN ('Queued', 'Running')) t
 WHERE j.org_id = %(org_id)s
 GROUP BY r.runtime
"""


@dataclass(frozen=True)
class LiveTasks:
    """The tasks of one runtime that wait or run."""

    runtime: str
    queued: int
    running: int


async def count_live(conn: Conn, org_id: UUID) -> list[LiveTasks]:
    """Count the queued and running tasks of each runtime."""
    return await fetch_all(conn, LiveTasks, _LIVE, {"org_id": org_id})


# The index of ended tasks begins with the generation that they read; a source reads none.
_MINUTES = """
SELECT date_trunc('minute', t.finished_at) AS minute,
       count(*) FILTER (WHERE t.status = 'Completed') AS completed,
       count(*) FILTER (WHERE t.status = 'Failed') AS failed
  FROM (SELECT v.dataset_version FROM dataset_versions v JOIN datasets d USING (dataset_uuid)
         WHERE d.org_id = %(org_id)s
         UNION ALL
        SELECT NULL) v
 CROSS JOIN LATERAL (
       SELECT finished_at, status FROM tasks
        WHERE dataset_version = v.dataset_version AND finished_at > now() - interval '1 hour'
        UNION ALL
       SELECT finished_at, status FROM tasks
        WHERE v.dataset_version IS NULL AND dataset_version IS NULL AND org_id = %(org_id)s
          AND finished_at > now() - interval '1 hour') t
 GROUP BY 1 ORDER BY 1
"""


async def list_minutes(conn: Conn, org_id: UUID) -> list[MinuteItem]:
    """Count the tasks that ended in each minute of the last hour."""
    return await fetch_all(conn, MinuteItem, _MINUTES, {"org_id": org_id})


_CHAINS = """
SELECT g.name AS dag, j.name AS job, t.task_id, t.status, t.worker_id, e.cursor_value AS cursor,
       e.accepted_at AS advanced_at, is_paused(j, t.bulk) AS is_paused,
       h.head, h.head_at, h.position, greatest(h.head, h.position) - h.position AS lag_blocks,
       extract(epoch FROM greatest(h.head_at, h.position_at) - h.position_at)::bigint AS lag_seconds,
       h.reported_at,
       CASE WHEN t.status = 'Running' THEN
            extract(epoch FROM now() - greatest(h.reported_at, t.started_at))::bigint
       END AS silent_seconds,
       (SELECT count(DISTINCT (i.made_at, i.range_start))
          FROM job_outputs o JOIN reorganisations i ON i.dataset_uuid = o.dataset_uuid
         WHERE o.revision_id = t.revision_id AND i.task_id = t.task_id
           AND i.made_at > now() - interval '1 day') AS reorganisations,
       CASE WHEN t.status <> 'Running' THEN t.error_message END AS reason
  FROM jobs j JOIN dags g USING (dag_id) JOIN job_revisions r ON r.revision_id = j.revision_id
 CROSS JOIN LATERAL (
       SELECT * FROM tasks t WHERE t.job_id = j.job_id AND t.revision_id = j.revision_id
        ORDER BY t.created_at DESC LIMIT 1) t
  LEFT JOIN chain_heads h USING (task_id)
  LEFT JOIN LATERAL (
       SELECT v.cursor_value, v.accepted_at FROM events v
        WHERE v.producer_task_id = t.task_id AND v.cursor_value IS NOT NULL
        ORDER BY v.cursor_value DESC LIMIT 1) e ON true
 WHERE j.org_id = %(org_id)s AND j.active AND r.source ->> 'kind' = 'always_on'
 ORDER BY 1, 2
"""


async def list_chains(conn: Conn, org_id: UUID) -> list[FollowedChain]:
    """List the always_on sources with the position that each has reached."""
    return await fetch_all(conn, FollowedChain, _CHAINS, {"org_id": org_id})


_FAILURES = """
SELECT g.name AS dag, j.name AS job, f.error_code, count(*) AS tasks,
       max(f.finished_at) AS newest_at,
       (array_agg(f.task_id ORDER BY f.finished_at DESC))[1] AS task_id,
       (array_agg(f.partition_key ORDER BY f.finished_at DESC))[1] AS partition_key,
       (array_agg(f.error_message ORDER BY f.finished_at DESC))[1] AS error_message
  FROM job_failures f JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
 WHERE j.org_id = %(org_id)s AND j.active AND (%(dag)s::text IS NULL OR g.name = %(dag)s)
 GROUP BY 1, 2, 3 ORDER BY newest_at DESC NULLS LAST LIMIT 200
"""


async def list_failures(conn: Conn, org_id: UUID, dag: str | None) -> list[FailureGroup]:
    """Group the tasks that failed permanently by job and error, newest first."""
    return await fetch_all(conn, FailureGroup, _FAILURES, {"org_id": org_id, "dag": dag})
