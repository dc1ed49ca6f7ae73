"""Remove a DAG: retire its jobs, cancel its tasks, free its names, and delete its data in batches."""

from typing import Any
from uuid import UUID

from trace_etl.api.user.dags.dags import RemoveReply
from trace_etl.model.errors import NameInUse, NotFound
from trace_etl.policy.deploy.deploy_plan import describe_readers
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_dicts
from trace_etl.state.partitions import check_results
from trace_etl.state.rollout import deployed_state, retire, rollouts

_FIND = """
SELECT dag_id, removed_at FROM dags
 WHERE org_id = %(org_id)s AND (name = %(name)s OR removed_name = %(name)s)
 ORDER BY removed_at DESC NULLS FIRST LIMIT 1
"""
_JOBS = "SELECT name FROM jobs WHERE dag_id = %(dag_id)s AND active ORDER BY name"
_NAMES = """
SELECT DISTINCT p.name FROM publications p JOIN dataset_producers d USING (dataset_uuid)
  JOIN jobs j USING (job_id) WHERE j.dag_id = %(dag_id)s ORDER BY 1
"""
_TASKS = """
SELECT count(*) AS tasks FROM tasks t JOIN jobs j USING (job_id)
 WHERE j.dag_id = %(dag_id)s AND NOT t.abandoned
   AND (t.status IN ('Queued', 'Running') OR (t.status = 'Failed' AND t.retry_at IS NOT NULL))
"""
_CONTENTS = """
SELECT count(*) AS partitions, coalesce(sum(p.row_count), 0)::bigint AS row_count,
       coalesce(sum(p.byte_count), 0)::bigint AS byte_count
  FROM jobs j JOIN datasets d USING (job_id) JOIN dataset_versions v USING (dataset_uuid)
  JOIN partitions p ON p.dataset_version = v.dataset_version
 WHERE j.dag_id = %(dag_id)s
"""
_END_ROLLOUTS = """
UPDATE rollouts SET state = 'superseded', ended_at = now()
 WHERE dag_id = %(dag_id)s AND state = 'building'
"""
_END_BACKFILLS = """
UPDATE backfills b SET state = 'canceled', ended_at = now(), why = 'the DAG was removed'
  FROM jobs j WHERE j.job_id = b.job_id AND j.dag_id = %(dag_id)s AND b.state = 'running'
"""
_RETIRE_JOBS = """
UPDATE jobs SET active = false, building_revision_id = NULL WHERE dag_id = %(dag_id)s AND active
"""
_FREE_NAMES = """
DELETE FROM publications p USING datasets d JOIN jobs j USING (job_id)
 WHERE p.dataset_uuid = d.dataset_uuid AND j.dag_id = %(dag_id)s
"""
# A buffered name exists as long as at least one DAG publishes it.
_FREE_SHARED_NAMES = """
DELETE FROM publications p USING datasets d
 WHERE p.org_id = %(org_id)s AND d.dataset_uuid = p.dataset_uuid AND d.buffer_name IS NOT NULL
   AND NOT EXISTS (SELECT FROM dataset_producers w WHERE w.dataset_uuid = p.dataset_uuid)
"""
_DROP_DEFERRED = """
DELETE FROM deferred_events e USING jobs j WHERE j.job_id = e.job_id AND j.dag_id = %(dag_id)s
"""
_MARK = """
UPDATE dags
   SET dag_version = NULL, removed_at = now(), keeps_data = %(keep_data)s, removed_name = %(name)s,
       name = CASE WHEN %(keep_data)s THEN name ELSE name || '#' || dag_id END
 WHERE dag_id = %(dag_id)s
"""
_REASON = "the DAG was removed"


async def preview(conn: Conn, org_id: UUID, name: str) -> RemoveReply:
    """Return what `remove` would do, without changing anything. Raises NotFound."""
    dag_id, was_removed = await _find(conn, org_id, name)
    if was_removed:
        return RemoveReply(
            dag=name,
            removed=False,
            jobs=[],
            names=[],
            readers={},
            tasks=0,
            partitions=0,
            row_count=0,
            byte_count=0,
        )
    key = {"dag_id": dag_id}
    contents = (await fetch_dicts(conn, _CONTENTS, key))[0]
    return RemoveReply(
        dag=name,
        removed=False,
        jobs=[row["name"] for row in await fetch_dicts(conn, _JOBS, key)],
        names=[row["name"] for row in await fetch_dicts(conn, _NAMES, key)],
        readers=await deployed_state.find_readers(conn, dag_id),
        tasks=(await fetch_dicts(conn, _TASKS, key))[0]["tasks"],
        **contents,
    )


async def remove(
    conn: Conn, org_id: UUID, name: str, *, keep_data: bool, allow_breaking: bool
) -> RemoveReply:
    """Remove a DAG. Removing it again changes nothing. Raises NotFound, NameInUse."""
    await rollouts.lock(conn, org_id, name)
    dag_id, was_removed = await _find(conn, org_id, name)
    planned = await preview(conn, org_id, name)
    if was_removed:
        return planned
    if planned.readers and not allow_breaking:
        raise NameInUse(describe_readers(planned.readers))
    values: dict[str, Any] = {
        "dag_id": dag_id,
        "org_id": org_id,
        "name": name,
        "keep_data": keep_data,
    }
    await rollouts.clear_building_datasets(conn, dag_id)
    for statement in (_END_ROLLOUTS, _END_BACKFILLS, _RETIRE_JOBS, _FREE_NAMES):
        await conn.execute(statement, values)
    await conn.execute(_FREE_SHARED_NAMES, values)
    await conn.execute(_DROP_DEFERRED, values)
    tasks = await retire.retire_tasks(conn, dag_id, reason=_REASON)
    await conn.execute(_MARK, values)
    return planned.model_copy(update={"removed": True, "tasks": tasks})


async def _find(conn: Conn, org_id: UUID, name: str) -> tuple[UUID, bool]:
    rows = await fetch_dicts(conn, _FIND, {"org_id": org_id, "name": name})
    if not rows:
        raise NotFound(f"no DAG {name!r}; `trace dags` lists them")
    return rows[0]["dag_id"], rows[0]["removed_at"] is not None


_EMPTY = """
WITH gone AS (
    SELECT p.dataset_version, p.partition_key
      FROM dags g JOIN jobs j USING (dag_id) JOIN datasets d USING (job_id)
      JOIN dataset_versions v USING (dataset_uuid)
      JOIN partitions p ON p.dataset_version = v.dataset_version
     WHERE g.removed_at IS NOT NULL AND NOT g.keeps_data
     LIMIT %(limit)s FOR UPDATE OF p SKIP LOCKED
)
DELETE FROM partitions p USING gone
 WHERE p.dataset_version = gone.dataset_version AND p.partition_key = gone.partition_key
"""
# Tables in Postgres data are dropped after their retention when no pointer refers to their generation.
_FORGET_GENERATIONS = """
UPDATE datasets d SET dataset_version = NULL
  FROM dags g JOIN jobs j USING (dag_id)
 WHERE g.removed_at IS NOT NULL AND NOT g.keeps_data AND d.job_id = j.job_id
   AND d.dataset_version IS NOT NULL
"""


async def delete_data(conn: Conn, *, limit: int) -> int:
    """Delete one batch of partitions of removed DAGs. Their objects are swept after their retention."""
    await conn.execute(_FORGET_GENERATIONS)
    await check_results.delete_removed(conn, limit=limit)
    return (await conn.execute(_EMPTY, {"limit": limit})).rowcount
