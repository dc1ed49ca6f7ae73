"""Swap: move every pointer of a rollout to the new generations, in one transaction."""

from uuid import UUID

from trace_etl.model.errors import Conflict
from trace_etl.state.db.pool import Conn
from trace_etl.state.feed import delivery_log
from trace_etl.state.rollout import backfill_consumers, coverage, retire, rollouts
from trace_etl.state.rollout.rollouts import BuildingRollout

_COMPLETE = """
UPDATE rollouts SET state = 'complete', ended_at = now()
 WHERE rollout_id = %(rollout_id)s AND state = 'building'
"""
_SWAP_JOBS = """
UPDATE jobs SET revision_id = building_revision_id, building_revision_id = NULL
 WHERE dag_id = %(dag_id)s AND building_revision_id IS NOT NULL
"""
_SWAP_DATASETS = """
UPDATE datasets d SET dataset_version = d.building_version, building_version = NULL
  FROM jobs j
 WHERE j.dag_id = %(dag_id)s AND d.job_id = j.job_id AND d.building_version IS NOT NULL
RETURNING d.dataset_uuid
"""
# No partition may be committed between the last coverage check and the move of the pointers. The table is
# locked after the tasks are updated, because a completion also locks its task before its partitions.
_LOCK_PARTITIONS = "LOCK TABLE partitions IN SHARE ROW EXCLUSIVE MODE"
_LIMIT_WAIT = "SET LOCAL lock_timeout = '5s'"  # commits of partitions wait behind this lock


class NotCovered(Conflict, code="not_covered"):
    """The old generations hold a partition that the new ones lack."""


async def swap(conn: Conn, rollout: BuildingRollout, *, covered_as_of: str | None) -> list[UUID]:
    """Move every pointer of a rollout. Returns the datasets whose generation changed.

    `covered_as_of` is the snapshot in which everything was covered; None swaps even if partitions are
    missing. Raises NotCovered if the old generations gained a partition since that snapshot, Conflict
    if the rollout has ended.
    """
    await rollouts.lock(conn, rollout.org_id, rollout.dag)
    if not (await conn.execute(_COMPLETE, {"rollout_id": rollout.rollout_id})).rowcount:
        raise Conflict(
            f"the rollout of {rollout.dag} has already ended; `trace rollout {rollout.dag}` shows it"
        )
    key = {"dag_id": rollout.dag_id, "dag_version": rollout.dag_version}
    await conn.execute(_SWAP_JOBS, key)
    await delivery_log.set_reason(conn, "deploy" if covered_as_of is not None else "promote")
    rows = await (await conn.execute(_SWAP_DATASETS, key)).fetchall()
    await retire.retire_jobs(conn, rollout.dag_id, rollout.dag_version)
    await rollouts.publish_names(conn, rollout.org_id, rollout.dag_id, rollout.dag_version)
    await retire.retire_tasks(conn, rollout.dag_id)
    await conn.execute(_LIMIT_WAIT)
    await conn.execute(_LOCK_PARTITIONS)
    if covered_as_of is not None and await coverage.has_new_gaps(
        conn, rollout.rollout_id, covered_as_of
    ):
        raise NotCovered(
            f"{rollout.dag}: a partition was committed to the old generation meanwhile; try again"
        )
    moved: list[UUID] = [row[0] for row in rows]
    await backfill_consumers.backfill_readers(conn, moved)
    return moved
