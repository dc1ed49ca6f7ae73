"""Swap: move every pointer of a rollout to the new generations, in one transaction."""

from uuid import UUID

from trace_etl.model.errors import Conflict
from trace_etl.state.db.pool import Conn
from trace_etl.state.rollout import backfill_consumers, coverage, retire, rollouts
from trace_etl.state.rollout.rollouts import Building

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
# No partition is committed between the last check of the coverage and the move of the pointers. The
# lock comes after the updates of tasks: a completion, too, locks its task before its partitions.
_LOCK_PARTITIONS = "LOCK TABLE partitions IN SHARE ROW EXCLUSIVE MODE"
_LIMIT_WAIT = "SET LOCAL lock_timeout = '5s'"  # commits of partitions wait behind this lock


class NotCovered(Conflict):
    """The old generations hold a partition that the new ones lack."""

    code = "not_covered"


async def swap(conn: Conn, one: Building, *, covered_as_of: str | None) -> list[UUID]:
    """Move every pointer of a rollout at once. Returns the datasets whose generation changed.

    `covered_as_of` is the snapshot in which all was covered; None swaps whatever is missing. Raises
    NotCovered if the old generations gained a partition since, Conflict if the rollout has ended.
    """
    await rollouts.lock(conn, one.org_id, one.dag)
    if not (await conn.execute(_COMPLETE, {"rollout_id": one.rollout_id})).rowcount:
        raise Conflict(f"the rollout of {one.dag} has already ended")
    key = {"dag_id": one.dag_id, "dag_version": one.dag_version}
    await conn.execute(_SWAP_JOBS, key)
    rows = await (await conn.execute(_SWAP_DATASETS, key)).fetchall()
    await retire.retire_jobs(conn, one.dag_id, one.dag_version)
    await rollouts.publish_names(conn, one.org_id, one.dag_id, one.dag_version)
    await retire.retire_tasks(conn, one.dag_id)
    await conn.execute(_LIMIT_WAIT)
    await conn.execute(_LOCK_PARTITIONS)
    if covered_as_of is not None and await coverage.has_new_gaps(
        conn, one.rollout_id, covered_as_of
    ):
        raise NotCovered(f"{one.dag}: a partition was committed to the old generation meanwhile")
    moved: list[UUID] = [row[0] for row in rows]
    await backfill_consumers.backfill_readers(conn, moved)
    return moved
