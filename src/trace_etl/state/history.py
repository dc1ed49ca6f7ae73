"""Forgetting what ended long ago."""

from datetime import timedelta

from trace_etl.state.pool import Conn

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
