"""Generations whose rows are in tables of Postgres data, and when those may go."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.state.db.pool import Conn

_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended('trace.retired_tables', 0))"

# What readers see, what is being built, and what a rollback would bring back. Since when a
# generation is none of these is written down when it is first noticed, and forgotten when it comes
# back, by whatever way it did.
_MARK = """
WITH kept AS MATERIALIZED (
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
       = (NOT EXISTS (SELECT FROM kept k WHERE k.dataset_version = v.dataset_version))
"""

# The tasks of a generation are deleted with its tables: if the generation returns, it is built anew.
_FORGET = """
WITH old AS (
    SELECT t.task_id
      FROM expired_generations(%(tables)s, %(kept)s) n
      JOIN job_revisions r ON r.job_id = n.job_id AND r.generation_hash = n.generation_hash
      JOIN tasks t ON t.job_id = r.job_id AND t.revision_id = r.revision_id
     WHERE t.status IN ('Completed', 'Failed', 'Canceled') AND t.retry_at IS NULL
       AND NOT EXISTS (SELECT FROM partitions p WHERE p.task_id = t.task_id)
     LIMIT %(limit)s
       FOR UPDATE OF t SKIP LOCKED
), attempts AS (
    DELETE FROM task_attempts a USING old WHERE a.task_id = old.task_id
), happened AS (
    DELETE FROM events e USING old WHERE e.producer_task_id = old.task_id
)
DELETE FROM tasks t USING old WHERE t.task_id = old.task_id
"""
# A pass deletes a limited number of tasks. The tables may go once no task is left.
_DONE = """
WITH clear AS MATERIALIZED (
    SELECT n.job_id, n.generation_hash FROM expired_generations(%(tables)s, %(kept)s) n
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
          AND v.abandoned_at < now() - %(kept)s
        WHERE r.job_id = n.job_id AND r.generation_hash = n.generation_hash) o
 GROUP BY n.job_id, n.generation_hash
"""


@dataclass(frozen=True)
class Retired:
    """The tables of one generation of a job."""

    tables: list[str]
    dataset_versions: list[UUID]


async def to_drop(conn: Conn, tables: list[str], *, kept: timedelta, limit: int) -> list[Retired]:
    """Of these tables, those that nobody has read for `kept`, and their siblings.

    One pass at a time over all replicas; the others are told of nothing.
    """
    row = await (await conn.execute(_LOCK)).fetchone()
    if row is None or not row[0]:
        return []
    await conn.execute(_MARK)
    values = {"tables": tables, "kept": kept, "limit": limit}
    await conn.execute(_FORGET, values)
    async with conn.cursor(row_factory=class_row(Retired)) as cursor:
        await cursor.execute(_DONE, values)
        return await cursor.fetchall()
