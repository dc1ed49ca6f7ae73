"""Find the tables in Postgres data of retired generations that may be dropped."""

from datetime import timedelta

from trace_etl.api.task.retired_tables import RetiredTables
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all

_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended('trace.retired_tables', 0))"

# A generation is in use if it is current, is being built, or would be restored by a rollback.
# `abandoned_at` is set when a pass first finds a generation unused, and cleared when it is used again.
_MARK_UNUSED = """
WITH used AS MATERIALIZED (
    SELECT dataset_version FROM datasets WHERE dataset_version IS NOT NULL
     UNION
    SELECT building_version FROM datasets WHERE building_version IS NOT NULL
     UNION
    SELECT o.dataset_version
      FROM dags g
     CROSS JOIN LATERAL (
           SELECT r.previous_version FROM rollouts r
            WHERE r.dag_id = g.dag_id AND r.dag_version = g.dag_version
              AND r.state IN ('building', 'complete')
            ORDER BY r.started_at DESC LIMIT 1) r
      JOIN dag_version_jobs m ON m.dag_version = r.previous_version
      JOIN job_outputs o ON o.revision_id = m.revision_id
)
UPDATE dataset_versions v
   SET abandoned_at = CASE WHEN v.abandoned_at IS NULL THEN now() END
 WHERE (v.abandoned_at IS NULL)
       = (NOT EXISTS (SELECT FROM used u WHERE u.dataset_version = v.dataset_version))
"""

# The tasks of a generation are deleted with its tables: if a later deploy needs the generation, it is
# built from the start.
_DELETE_TASKS = """
WITH old AS (
    SELECT t.task_id
      FROM expired_generations(%(tables)s, %(retention)s) n
      JOIN job_revisions r ON r.job_id = n.job_id AND r.generation_hash = n.generation_hash
      JOIN tasks t ON t.job_id = r.job_id AND t.revision_id = r.revision_id
     WHERE t.status IN ('Completed', 'Failed', 'Canceled') AND t.retry_at IS NULL
       AND NOT EXISTS (SELECT FROM partitions p WHERE p.task_id = t.task_id)
     LIMIT %(limit)s
       FOR UPDATE OF t SKIP LOCKED
), attempts AS (
    DELETE FROM task_attempts a USING old WHERE a.task_id = old.task_id
), own_events AS (
    DELETE FROM events e USING old WHERE e.producer_task_id = old.task_id
)
DELETE FROM tasks t USING old WHERE t.task_id = old.task_id
"""
# A pass deletes a limited number of tasks. The tables may be dropped when no task is left.
_FIND_DROPPABLE = """
WITH clear AS MATERIALIZED (
    SELECT n.job_id, n.generation_hash FROM expired_generations(%(tables)s, %(retention)s) n
     WHERE NOT EXISTS (
           SELECT FROM job_revisions r
             JOIN tasks t ON t.job_id = r.job_id AND t.revision_id = r.revision_id
            WHERE r.job_id = n.job_id AND r.generation_hash = n.generation_hash)
), cursors AS (
    DELETE FROM consumer_cursors c USING clear n
     WHERE c.job_id = n.job_id AND c.generation_hash = n.generation_hash
), edges AS (
    DELETE FROM reconciled_edges e USING clear n
     WHERE e.job_id = n.job_id AND e.generation_hash = n.generation_hash
)
SELECT array_agg(hot_table_name(o.dataset_uuid, o.dataset_version)
                 ORDER BY o.dataset_version) AS tables,
       array_agg(o.dataset_version ORDER BY o.dataset_version) AS dataset_versions
  FROM clear n
 CROSS JOIN LATERAL (
       SELECT DISTINCT v.dataset_uuid, v.dataset_version
         FROM job_revisions r JOIN job_outputs o USING (revision_id)
         JOIN dataset_versions v ON v.dataset_version = o.dataset_version
          AND v.abandoned_at < now() - %(retention)s
        WHERE r.job_id = n.job_id AND r.generation_hash = n.generation_hash) o
 GROUP BY n.job_id, n.generation_hash
"""


async def find_droppable(
    conn: Conn, tables: list[str], *, retention: timedelta, limit: int
) -> list[RetiredTables]:
    """Return which of the given tables belong to generations unused for `retention`.

    The tables are grouped by generation of a job. Only one pass runs at a time over all replicas; a
    concurrent call returns an empty list.
    """
    row = await (await conn.execute(_LOCK)).fetchone()
    if row is None or not row[0]:
        return []
    await conn.execute(_MARK_UNUSED)
    values = {"tables": tables, "retention": retention, "limit": limit}
    await conn.execute(_DELETE_TASKS, values)
    return await fetch_all(conn, RetiredTables, _FIND_DROPPABLE, values)
