"""Read the progress of a rollout: covered blocks, running tasks and failures."""

from typing import Any
from uuid import UUID

from trace_etl.api.user.dags.rollouts import RolloutFailure, RolloutJob, RolloutReply, RolloutTarget
from trace_etl.model.errors import NotFound
from trace_etl.policy.deploy import rollout_reasons
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all, fetch_dicts
from trace_etl.state.rollout.deployed_state import to_block_ranges

_MAX_FAILURES = 20

_LATEST = """
SELECT r.rollout_id, g.name AS dag, r.dag_version, r.previous_version, r.state, r.started_at,
       r.ended_at
  FROM dags g JOIN rollouts r USING (dag_id)
 WHERE g.org_id = %(org_id)s AND g.name = %(dag)s
   AND (%(dag_version)s::uuid IS NULL OR r.dag_version = %(dag_version)s)
 ORDER BY r.started_at DESC LIMIT 1
"""


async def get_rollout(
    conn: Conn, org_id: UUID, dag: str, dag_version: UUID | None = None
) -> RolloutReply:
    """Read the last rollout of a DAG, or of one version of it. Raises NotFound."""
    values = {"org_id": org_id, "dag": dag, "dag_version": dag_version}
    rows = await fetch_dicts(conn, _LATEST, values)
    if not rows:
        raise NotFound(f"no DAG {dag!r} is deployed; `trace dags` lists them")
    rollout = rows[0]
    if rollout["state"] != "building":
        return RolloutReply(**rollout, targets=[], jobs=[], failures=[], reason=None)
    key = {"rollout_id": rollout["rollout_id"], "limit": _MAX_FAILURES}
    targets = [_build_target(row) for row in await fetch_dicts(conn, _TARGETS, key)]
    jobs = await fetch_all(conn, RolloutJob, _JOBS, key)
    failures = await fetch_all(conn, RolloutFailure, _FAILURES, key)
    reason = rollout_reasons.explain_rollout(_collect_facts(dag, targets, jobs, failures))
    return RolloutReply(**rollout, targets=targets, jobs=jobs, failures=failures, reason=reason)


_TARGETS = """
SELECT j.name AS job, d.output_name AS output, p.name, c.*
  FROM rollout_coverage c
  JOIN datasets d USING (dataset_uuid) JOIN jobs j USING (job_id)
  LEFT JOIN publications p USING (dataset_uuid)
 WHERE c.rollout_id = %(rollout_id)s
 ORDER BY j.name, d.output_name
"""


def _build_target(row: dict[str, Any]) -> RolloutTarget:
    old_ranges, missing = to_block_ranges(row["old_ranges"]), to_block_ranges(row["missing_ranges"])
    return RolloutTarget(
        **row,
        blocks=sum(end - start + 1 for start, end in old_ranges),
        missing_blocks=sum(end - start + 1 for start, end in missing),
        missing=missing,
        cursor=row["old_cursor"],
    )


_JOBS = """
SELECT t.job, count(*) FILTER (WHERE t.status = 'Queued') AS queued,
       count(*) FILTER (WHERE t.status = 'Running') AS running,
       count(*) FILTER (WHERE t.status = 'Failed' AND t.retry_at IS NOT NULL) AS retrying,
       count(*) FILTER (WHERE t.status = 'Failed' AND t.retry_at IS NULL) AS failed,
       count(*) FILTER (WHERE t.status = 'Canceled') AS canceled
  FROM rollouts r JOIN building_tasks t USING (dag_id)
 WHERE r.rollout_id = %(rollout_id)s AND NOT t.abandoned
   AND t.status IN ('Queued', 'Running', 'Failed', 'Canceled')
 GROUP BY t.job ORDER BY t.job
"""
_FAILURES = """
SELECT t.task_id, t.job, t.partition_key, t.attempt, t.error_code, t.error_message
  FROM rollouts r JOIN building_tasks t USING (dag_id)
 WHERE r.rollout_id = %(rollout_id)s AND NOT t.abandoned
   AND t.status = 'Failed' AND t.retry_at IS NULL
 ORDER BY t.finished_at LIMIT %(limit)s
"""


def _collect_facts(
    dag: str, targets: list[RolloutTarget], jobs: list[RolloutJob], failures: list[RolloutFailure]
) -> rollout_reasons.RolloutFacts:
    return rollout_reasons.RolloutFacts(
        dag=dag,
        queued=sum(job.queued for job in jobs),
        running=sum(job.running for job in jobs),
        retrying=sum(job.retrying for job in jobs),
        failed=sum(job.failed for job in jobs),
        canceled=sum(job.canceled for job in jobs),
        first_failure=_describe_failure(failures[0]) if failures else None,
        lacks=[missing for target in targets if (missing := _describe_missing(target))],
    )


def _describe_failure(task: RolloutFailure) -> str:
    return f"{task.job} {task.partition_key or ''} ({task.task_id}): {task.error_message}"


def _describe_missing(target: RolloutTarget) -> str | None:
    output = f"{target.job}.{target.output} lacks"
    if target.missing:
        start, end = target.missing[0]
        more = f" and {len(target.missing) - 1} more ranges" if len(target.missing) > 1 else ""
        return f"{output} blocks {start}-{end}{more}"
    if target.missing_keys:
        return (
            f"{output} {len(target.missing_keys)} partitions, the first is {target.missing_keys[0]}"
        )
    if target.cursor is not None and (target.new_cursor or -1) < target.cursor:
        return f"{output} the rows after cursor {target.new_cursor}, up to {target.cursor}"
    return None
