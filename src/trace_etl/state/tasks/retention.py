"""Forgetting what ended long ago."""

from datetime import timedelta

from trace_etl.state.db.pool import Conn

# A task that a committed partition points at stays: it is the partition's lineage. So does the
# word on a scope of a live generation: its row keeps the same work from being created again.
_DROP = """
WITH abandoned AS MATERIALIZED (
    SELECT v.dataset_version FROM dataset_versions v JOIN datasets d USING (dataset_uuid)
     WHERE d.dataset_version IS DISTINCT FROM v.dataset_version
       AND d.building_version IS DISTINCT FROM v.dataset_version
), old AS (
    SELECT f.task_id FROM abandoned a CROSS JOIN LATERAL (
        SELECT t.task_id FROM tasks t
         WHERE t.dataset_version = a.dataset_version AND t.finished_at < now() - %(older_than)s
           AND t.status IN ('Completed', 'Failed', 'Canceled')
           AND NOT EXISTS (SELECT FROM partitions p WHERE p.task_id = t.task_id)
         LIMIT %(limit)s
           FOR UPDATE SKIP LOCKED
    ) f LIMIT %(limit)s
), attempts AS (
    DELETE FROM task_attempts a USING old WHERE a.task_id = old.task_id
), happened AS (
    DELETE FROM events e USING old WHERE e.producer_task_id = old.task_id
)
DELETE FROM tasks t USING old WHERE t.task_id = old.task_id
"""


async def drop_finished(conn: Conn, *, older_than: timedelta, limit: int) -> int:
    """Delete finished tasks of generations that nobody reads any more, with their history."""
    return (await conn.execute(_DROP, {"older_than": older_than, "limit": limit})).rowcount


# The lineage of a generation is dropped when nobody sees the generation, no rollback leads to it,
# and nothing whose lineage is kept was made from it: so never what leads up from current data. What
# it was made from itself follows in the next round.
_DROP_LINEAGE = """
WITH seen AS MATERIALIZED (
    SELECT dataset_version FROM datasets WHERE dataset_version IS NOT NULL
     UNION
    SELECT building_version FROM datasets WHERE building_version IS NOT NULL
     UNION
    SELECT o.dataset_version FROM dags g
      JOIN rollouts r ON r.dag_id = g.dag_id AND r.dag_version = g.dag_version
       AND r.state IN ('building', 'complete')
      JOIN dag_version_jobs m ON m.dag_version = r.previous_version
      JOIN job_outputs o ON o.revision_id = m.revision_id
), gone AS MATERIALIZED (
    SELECT v.dataset_version FROM dataset_versions v
     WHERE v.created_at < now() - %(older_than)s
       AND NOT EXISTS (SELECT FROM seen s WHERE s.dataset_version = v.dataset_version)
       AND EXISTS (SELECT FROM partition_inputs l WHERE l.dataset_version = v.dataset_version)
       AND NOT EXISTS (SELECT FROM partition_inputs l WHERE l.input_version = v.dataset_version
                          AND l.dataset_version <> v.dataset_version)
     LIMIT 20
)
DELETE FROM partition_inputs WHERE ctid = ANY(ARRAY(
    SELECT l.ctid FROM gone JOIN partition_inputs l USING (dataset_version)
     LIMIT %(limit)s FOR UPDATE OF l SKIP LOCKED))
"""


async def drop_lineage(conn: Conn, *, older_than: timedelta, limit: int) -> int:
    """Delete the lineage of generations that nobody sees and nothing seen was made from."""
    return (await conn.execute(_DROP_LINEAGE, {"older_than": older_than, "limit": limit})).rowcount
