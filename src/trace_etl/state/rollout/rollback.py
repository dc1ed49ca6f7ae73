"""Rollback: restore the version of a DAG before the current one."""

from dataclasses import dataclass, replace
from uuid import UUID

from trace_etl.api.user.dags.rollouts import RestoredDataset, RollbackReply
from trace_etl.model.errors import NothingToRollBack
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all
from trace_etl.state.feed import delivery_log
from trace_etl.state.rollout import backfill_consumers, retire, rollouts
from trace_etl.state.storage import retired_generations

_END_ROLLOUT = """
UPDATE rollouts SET state = 'rolled_back', ended_at = now() WHERE rollout_id = %(rollout_id)s
"""
_RESTORE_JOBS = """
UPDATE jobs j SET revision_id = m.revision_id, building_revision_id = NULL, active = true
  FROM dag_version_jobs m
 WHERE m.dag_version = %(dag_version)s AND j.job_id = m.job_id
"""
# The revisions whose generation becomes current again. They must process the changes of their inputs
# since it was last current.
_RETURNING = """
SELECT m.revision_id FROM dag_version_jobs m JOIN jobs j USING (job_id)
  JOIN job_revisions now ON now.revision_id = j.revision_id
  JOIN job_revisions back ON back.revision_id = m.revision_id
 WHERE m.dag_version = %(dag_version)s
   AND (NOT j.active OR now.generation_hash <> back.generation_hash)
"""
_RESTORE_DATASETS = """
UPDATE datasets d SET dataset_version = o.dataset_version, building_version = NULL
  FROM dag_version_jobs m JOIN job_outputs o USING (revision_id)
  JOIN datasets old ON old.dataset_uuid = o.dataset_uuid
  JOIN jobs j ON j.job_id = m.job_id
 WHERE m.dag_version = %(dag_version)s AND d.dataset_uuid = o.dataset_uuid
   AND d.dataset_version IS DISTINCT FROM o.dataset_version
RETURNING j.name AS job, d.output_name AS output,
          (SELECT p.name FROM publications p WHERE p.dataset_uuid = d.dataset_uuid) AS dataset,
          d.dataset_uuid, old.dataset_version AS from_version, d.dataset_version AS to_version
"""


@dataclass(frozen=True)
class RolledBack:
    """The result of a rollback."""

    reply: RollbackReply
    revisions: list[UUID]
    """The revisions whose generation is current again."""


async def preview(conn: Conn, org_id: UUID, dag: str) -> RolledBack:
    """Return what a rollback would do now: do it, and undo it. Raises the errors of `roll_back`."""
    async with conn.transaction(force_rollback=True):
        result = await roll_back(conn, org_id, dag)
    return replace(result, reply=result.reply.model_copy(update={"dry_run": True}))


async def roll_back(conn: Conn, org_id: UUID, dag: str) -> RolledBack:
    """Restore the previous version of a DAG. Raises NotFound, NothingToRollBack, NameTaken."""
    await rollouts.lock(conn, org_id, dag)
    current = await rollouts.get_current(conn, org_id, dag)
    if current.previous_version is None:
        raise NothingToRollBack(
            f"the DAG {dag} has no version before {current.dag_version}; deploy the text that you want"
        )
    version = {"dag_version": current.previous_version}
    returning = await (await conn.execute(_RETURNING, version)).fetchall()
    revisions: list[UUID] = [row[0] for row in returning]
    await retired_generations.restore(conn, revisions)
    await backfill_consumers.emit_again(conn, revisions)
    await conn.execute(_END_ROLLOUT, {"rollout_id": current.rollout_id})
    await conn.execute(_RESTORE_JOBS, version)
    await delivery_log.set_reason(conn, "rollback")
    await retire.retire_jobs(conn, current.dag_id, current.previous_version)
    datasets = await fetch_all(conn, RestoredDataset, _RESTORE_DATASETS, version)
    await rollouts.clear_building_datasets(conn, current.dag_id)
    await rollouts.publish_names(conn, org_id, current.dag_id, current.previous_version)
    await rollouts.switch_version(conn, current.dag_id, current.previous_version)
    canceled = await retire.retire_tasks(conn, current.dag_id)
    requeued = await retire.requeue_tasks(conn, current.dag_id)
    await backfill_consumers.backfill(conn, revisions)
    await backfill_consumers.backfill_readers(conn, [d.dataset_uuid for d in datasets])
    reply = RollbackReply(
        dry_run=False,
        dag=dag,
        dag_version=current.previous_version,
        from_version=current.dag_version,
        canceled=canceled,
        requeued=requeued,
        datasets=datasets,
    )
    return RolledBack(reply, revisions)
