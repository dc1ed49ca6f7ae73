"""Delete finished tasks and lineage of old generations."""

from datetime import timedelta

from trace_etl.state.db.pool import Conn

# Two kinds of tasks stay. A task that a committed partition refers to is part of the partition's lineage.
# A task of a live generation prevents a second task with the same dedupe key.
_DROP_FINISHED = """
WITH retired AS MATERIALIZED (
    SELECT v.dataset_version FROM dataset_versions v JOIN datasets d USING (dataset_uuid)
     WHERE d.dataset_version IS DISTINCT FROM v.dataset_version
       AND d.building_version IS DISTINCT FROM v.dataset_version
), old AS (
    SELECT f.task_id FROM retired v CROSS JOIN LATERAL (
        SELECT t.task_id FROM tasks t
         WHERE t.dataset_version = v.dataset_version AND t.finished_at < now() - %(older_than)s
           AND t.status IN ('Completed', 'Failed', 'Canceled')
           AND NOT EXISTS (SELECT FROM partitions p WHERE p.task_id = t.task_id)
         LIMIT %(limit)s
           FOR UPDATE SKIP LOCKED
    ) f LIMIT %(limit)s
), attempts AS (
    DELETE FROM task_attempts a USING old WHERE a.task_id = old.task_id
), emitted AS (
    DELETE FROM events e USING old WHERE e.producer_task_id = old.task_id
)
DELETE FROM tasks t USING old WHERE t.task_id = old.task_id
"""


async def drop_finished(conn: Conn, *, older_than: timedelta, limit: int) -> int:
    """Delete finished tasks of retired generations, with their attempts and events."""
    return (await conn.execute(_DROP_FINISHED, {"older_than": older_than, "limit": limit})).rowcount


# The lineage of a generation is deleted when three conditions hold: the generation is neither live nor
# being built, no rollback returns to it, and no generation that has lineage was made from it. So the
# lineage of current data is complete. A later call then deletes the lineage of the generation's inputs.
_DROP_LINEAGE = """
WITH needed AS MATERIALIZED (
    SELECT dataset_version FROM datasets WHERE dataset_version IS NOT NULL
     UNION
    SELECT building_version FROM datasets WHERE building_version IS NOT NULL
     UNION
    SELECT o.dataset_version FROM dags g
      JOIN rollouts r ON r.dag_id = g.dag_id AND r.dag_version = g.dag_version
       AND r.state IN ('building', 'complete')
      JOIN dag_version_jobs m ON m.dag_version = r.previous_version
      JOIN job_outputs o ON o.revision_id = m.revision_id
), unneeded AS MATERIALIZED (
    SELECT v.dataset_version FROM dataset_versions v
     WHERE v.created_at < now() - %(older_than)s
       AND NOT EXISTS (SELECT FROM needed n WHERE n.dataset_version = v.dataset_version)
       AND EXISTS (SELECT FROM partition_inputs l WHERE l.dataset_version = v.dataset_version)
       AND NOT EXISTS (SELECT FROM partition_inputs l WHERE l.input_version = v.dataset_version
                          AND l.dataset_version <> v.dataset_version)
     LIMIT 20
)
DELETE FROM partition_inputs WHERE ctid = ANY(ARRAY(
    SELECT l.ctid FROM unneeded JOIN partition_inputs l USING (dataset_version)
     LIMIT %(limit)s FOR UPDATE OF l SKIP LOCKED))
"""


async def drop_lineage(conn: Conn, *, older_than: timedelta, limit: int) -> int:
    """Delete the lineage of generations that are not live and that no live data was made from."""
    return (await conn.execute(_DROP_LINEAGE, {"older_than": older_than, "limit": limit})).rowcount
