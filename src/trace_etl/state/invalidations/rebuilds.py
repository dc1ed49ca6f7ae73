"""Rebuild a scope that a user invalidated: run the tasks that produced it again."""

from uuid import uuid4

from trace_etl.model.errors import NotFound
from trace_etl.state.db.pool import Conn
from trace_etl.state.invalidations.invalidations import NewInvalidation

# Sources and splitters have events but no partitions, so a partition or an event shows that a scope was
# published.
_IS_PUBLISHED = """
SELECT EXISTS (
    SELECT FROM partitions p JOIN dataset_versions v USING (dataset_version)
     WHERE p.dataset_version = %(dataset_version)s
       AND (p.partition_key = %(partition_key)s
            OR (%(first)s::bigint IS NOT NULL
                AND overlaps_blocks(p, v.generation_no, %(first)s, %(last)s))))
    OR EXISTS (
    SELECT FROM events e
     WHERE e.dataset_version = %(dataset_version)s
       AND (%(partition_key)s::text IS NULL OR e.scope_key = 'p:' || %(partition_key)s)
       AND (%(partition_key)s::text IS NOT NULL OR e.range_start IS NULL
            OR (e.range_start <= %(last)s AND %(first)s <= e.range_end)))
"""


async def require_published(conn: Conn, scope: NewInvalidation) -> None:
    """Raise NotFound if no partition and no event of a scope was ever published."""
    row = await (await conn.execute(_IS_PUBLISHED, _make_scope_parameters(scope))).fetchone()
    if row is None or not row[0]:
        name = scope.partition_key or f"{scope.range_start}-{scope.range_end}"
        raise NotFound(
            f"nothing was published for {name}, so nothing can be invalidated; "
            "`trace dataset NAME` lists the partitions"
        )


# Every rebuild has its own key, so each call creates new tasks.
_REBUILD = """
WITH producer AS (
    SELECT DISTINCT ON (t.task_id) t.*, j.revision_id AS live_revision,
           coalesce(t.range_start, p.range_start) AS first,
           coalesce(t.range_end, p.range_end) AS last,
           CASE WHEN t.range_start IS NULL THEN p.partition_key ELSE t.partition_key END AS key
      FROM partitions p
      JOIN dataset_versions v ON v.dataset_version = p.dataset_version
      JOIN tasks t ON t.task_id = p.task_id
      JOIN jobs j ON j.job_id = t.job_id AND j.active
     WHERE p.dataset_version = %(dataset_version)s
       AND (p.partition_key = %(partition_key)s
            OR (%(first)s::bigint IS NOT NULL
                AND overlaps_blocks(p, v.generation_no, %(first)s, %(last)s)))
)
SELECT count(*) FROM create_tasks(ARRAY(
    SELECT new_task(org_id, job_id, live_revision, runtime, bulk,
                    concat_ws(':', 'rebuild', %(rebuild_id)s::text, task_id), max_attempts,
                    max_concurrency, timeout_seconds, lease_seconds, dataset_uuid,
                    dataset_version, key, first, last, cursor_value)
      FROM producer))
"""


async def rebuild(conn: Conn, scope: NewInvalidation) -> int:
    """Create tasks that run the producers of a scope again. Returns the number of tasks."""
    values = {**_make_scope_parameters(scope), "rebuild_id": uuid4().hex}
    row = await (await conn.execute(_REBUILD, values)).fetchone()
    return row[0] if row else 0


def _make_scope_parameters(scope: NewInvalidation) -> dict[str, object]:
    return {
        "dataset_version": scope.dataset_version,
        "partition_key": scope.partition_key,
        "first": scope.range_start,
        "last": scope.range_end,
    }
