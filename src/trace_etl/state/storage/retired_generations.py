"""Generations of jobs that no deployed version uses and no rollback restores: delete their rows.

The rows of a generation are its partitions, lineage, events, tasks, and the positions of its readers. The
trigger on `partitions` hands the prefixes to the storage sweeper. A sweep takes many transactions; if the
generation comes back before the last one, `restore` deletes the rest, so that everything is built again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from trace_etl.model.errors import Conflict
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all
from trace_etl.state.rollout import rollouts

_GENERATIONS_PER_PASS = 20


@dataclass(frozen=True)
class RetiredGeneration:
    """A generation of a job, and the DAG whose deploys may bring it back."""

    org_id: UUID
    dag: str
    job_id: UUID
    generation_hash: str
    dataset_versions: list[UUID]


# `abandoned_at` is set when a pass first finds a generation unused, and cleared when it is used again.
_MARK_UNUSED = """
WITH used AS MATERIALIZED (SELECT dataset_version FROM used_generations)
UPDATE dataset_versions v
   SET abandoned_at = CASE WHEN v.abandoned_at IS NULL THEN now() END
 WHERE (v.abandoned_at IS NULL)
       = (NOT EXISTS (SELECT FROM used u WHERE u.dataset_version = v.dataset_version))
"""


async def mark_unused(conn: Conn) -> None:
    """Record since when each generation is unused."""
    await conn.execute(_MARK_UNUSED)


# A buffered dataset belongs to a name and returns with it, so its generations stay.
_FIND_DUE = """
SELECT g.org_id, g.name AS dag, d.job_id, v.generation_hash,
       array_agg(v.dataset_version) AS dataset_versions
  FROM dataset_versions v JOIN datasets d USING (dataset_uuid) JOIN jobs j USING (job_id)
  JOIN dags g USING (dag_id)
 WHERE v.abandoned_at IS NOT NULL AND v.swept_at IS NULL
   AND (%(org_id)s::uuid IS NULL OR g.org_id = %(org_id)s::uuid)
 GROUP BY g.org_id, g.name, d.job_id, v.generation_hash
HAVING max(v.abandoned_at) < now() - %(retention)s AND count(retired_kept_by(v)) = 0
 ORDER BY max(v.abandoned_at) LIMIT %(limit)s
"""
# The caller holds the lock of the DAG, so no deploy brings the generation back before the commit.
_START = """
UPDATE dataset_versions v SET sweep_started_at = coalesce(v.sweep_started_at, now())
 WHERE v.dataset_version = ANY(%(dataset_versions)s) AND v.abandoned_at < now() - %(retention)s
   AND retired_kept_by(v) IS NULL
   AND NOT EXISTS (SELECT FROM used_generations u
                    WHERE u.dataset_version = ANY(%(dataset_versions)s))
RETURNING v.dataset_version
"""


async def sweep(conn: Conn, *, retention: timedelta, org_id: UUID | None, limit: int) -> int:
    """Delete rows of generations that are unused for `retention`: about `limit` of each kind.

    Returns the number of rows. Waits for nothing: the generations of a DAG that is being deployed are left
    to a later pass.
    """
    await mark_unused(conn)
    values = {"retention": retention, "org_id": org_id, "limit": _GENERATIONS_PER_PASS}
    deleted = 0
    for generation in await fetch_all(conn, RetiredGeneration, _FIND_DUE, values):
        if deleted >= limit:
            break
        if not await rollouts.try_lock(conn, generation.org_id, generation.dag):
            continue
        started = await (
            await conn.execute(_START, {**vars(generation), "retention": retention})
        ).fetchall()
        if len(started) == len(generation.dataset_versions):
            deleted += await _delete_rows(conn, generation, limit=limit)
    return deleted


_DELETE_PARTITIONS = """
DELETE FROM partitions WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM partitions WHERE dataset_version = ANY(%(dataset_versions)s) LIMIT %(limit)s))
"""
_DELETE_LINEAGE = """
DELETE FROM partition_inputs WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM partition_inputs WHERE dataset_version = ANY(%(dataset_versions)s)
     LIMIT %(limit)s))
"""
# Events of a later generation may be copies with the same producer. They stay.
_DELETE_EVENTS = """
DELETE FROM events WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM events WHERE dataset_version = ANY(%(dataset_versions)s) LIMIT %(limit)s))
"""
# The tasks of the generation, and tasks of its readers: all of them prevent a second task for their scope.
_DELETE_TASKS = """
WITH old AS (
    SELECT t.task_id FROM tasks t
     WHERE t.job_id = %(job_id)s AND NOT is_unfinished(t)
       AND t.revision_id = ANY(ARRAY(
           SELECT r.revision_id FROM job_revisions r
            WHERE r.job_id = %(job_id)s AND r.generation_hash = %(generation_hash)s))
       AND NOT EXISTS (SELECT FROM partitions p WHERE p.task_id = t.task_id)
     LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), readers AS (
    SELECT t.task_id FROM tasks t
     WHERE t.dataset_version = ANY(%(dataset_versions)s) AND t.finished_at IS NOT NULL
       AND NOT is_unfinished(t)
       AND NOT EXISTS (SELECT FROM partitions p WHERE p.task_id = t.task_id)
     LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), found AS (
    SELECT task_id FROM old UNION SELECT task_id FROM readers
), attempts AS (
    DELETE FROM task_attempts a USING found WHERE a.task_id = found.task_id
)
DELETE FROM tasks t USING found WHERE t.task_id = found.task_id
"""
_BATCHES = (_DELETE_PARTITIONS, _DELETE_LINEAGE, _DELETE_EVENTS, _DELETE_TASKS)
# What is left is small: the positions of the generation in its inputs, and of its readers in it.
_DELETE_POSITIONS = (
    """DELETE FROM consumer_cursors WHERE dataset_version = ANY(%(dataset_versions)s)
           OR (job_id = %(job_id)s AND generation_hash = %(generation_hash)s)""",
    """DELETE FROM reconciled_edges WHERE dataset_version = ANY(%(dataset_versions)s)
           OR (job_id = %(job_id)s AND generation_hash = %(generation_hash)s)""",
    """DELETE FROM aggregated_ranges WHERE dataset_version = ANY(%(dataset_versions)s)
           OR (job_id = %(job_id)s AND generation_hash = %(generation_hash)s)""",
    """DELETE FROM time_keys WHERE input_version = ANY(%(dataset_versions)s)
           OR (job_id = %(job_id)s AND generation_hash = %(generation_hash)s)""",
    """DELETE FROM refresh_requests
        WHERE job_id = %(job_id)s AND generation_hash = %(generation_hash)s""",
)
# A task that is locked may be completing: it is left to a later pass. A reader's task that has a partition is
# deleted with the generation of the reader.
_MARK_SWEPT = """
UPDATE dataset_versions v SET swept_at = now()
 WHERE v.dataset_version = ANY(%(dataset_versions)s)
   AND NOT EXISTS (SELECT FROM partitions p WHERE p.dataset_version = ANY(%(dataset_versions)s))
   AND NOT EXISTS (SELECT FROM events e WHERE e.dataset_version = ANY(%(dataset_versions)s))
   AND NOT EXISTS (SELECT FROM tasks t JOIN job_revisions r USING (revision_id)
                    WHERE t.job_id = %(job_id)s AND r.generation_hash = %(generation_hash)s)
   AND NOT EXISTS (SELECT FROM tasks t
                    WHERE t.dataset_version = ANY(%(dataset_versions)s)
                      AND t.finished_at IS NOT NULL
                      AND NOT EXISTS (SELECT FROM partitions p WHERE p.task_id = t.task_id))
"""


async def _delete_rows(conn: Conn, generation: RetiredGeneration, *, limit: int | None) -> int:
    """Delete up to `limit` rows of each kind, or all of them. Returns the number."""
    values: dict[str, Any] = {**vars(generation), "limit": limit}
    deleted = 0
    for statement in _BATCHES:
        deleted += (await conn.execute(statement, values)).rowcount
    for statement in (*_DELETE_POSITIONS, _MARK_SWEPT):
        await conn.execute(statement, values)
    return deleted


_FIND_RETURNING = """
SELECT g.org_id, g.name AS dag, d.job_id, v.generation_hash,
       array_agg(DISTINCT v.dataset_version) AS dataset_versions
  FROM job_outputs o JOIN dataset_versions v USING (dataset_version)
  JOIN datasets d ON d.dataset_uuid = v.dataset_uuid JOIN jobs j USING (job_id)
  JOIN dags g USING (dag_id)
 WHERE o.revision_id = ANY(%(revision_ids)s) AND v.sweep_started_at IS NOT NULL
 GROUP BY g.org_id, g.name, d.job_id, v.generation_hash
"""
_RESTORE = """
UPDATE dataset_versions SET abandoned_at = NULL, sweep_started_at = NULL, swept_at = NULL
 WHERE dataset_version = ANY(%(dataset_versions)s) AND swept_at IS NOT NULL
"""


async def restore(conn: Conn, revision_ids: Sequence[UUID]) -> None:
    """Prepare the generations of revisions for use: those whose sweep has started become empty.

    Call it before the tasks of the revisions are created, with the lock of their DAG. Raises Conflict if a
    late report for an old task is being processed.
    """
    values = {"revision_ids": list(revision_ids)}
    for generation in await fetch_all(conn, RetiredGeneration, _FIND_RETURNING, values):
        await _delete_rows(conn, generation, limit=None)
        if not (await conn.execute(_RESTORE, vars(generation))).rowcount:
            raise Conflict(
                f"a generation of the DAG {generation.dag} that comes back is being swept; try again"
            )
