"""The lineage of partitions and datasets: record it, and read it upstream and downstream."""

from collections.abc import Sequence
from uuid import UUID

from trace_etl.api.user.data.lineage import LineageDataset, LineageLink, LineagePartition
from trace_etl.model.errors import NotFound
from trace_etl.model.task import Fence
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all, fetch_dicts
from trace_etl.state.partitions.partition_pointers import MovedPartition

MAX_LINKS = 1000
_MAX_DEPTH = 32

_LINKS = """
WITH found AS (
    SELECT 'up' AS direction, a.*
      FROM partition_ancestors(%(dataset_version)s, %(partition_key)s, %(max_depth)s) a
     UNION ALL
    SELECT 'down', d.*
      FROM partition_descendants(%(dataset_version)s, %(partition_key)s, %(max_depth)s) d
), named AS (
    SELECT f.direction, f.depth, n.dataset, n.dag, n.job, n.output, n.dataset_uuid,
           f.version AS dataset_version, f.key AS partition_key, f.task_id, f.attempt,
           f.key = '*' OR EXISTS (
               SELECT FROM partitions p WHERE p.dataset_version = f.version
                  AND p.partition_key = f.key AND p.task_id = f.task_id) AS is_current,
           f.via_version, f.via_key,
           row_number() OVER (PARTITION BY f.direction ORDER BY f.depth, n.dag, n.job, n.output,
                              length(f.key), f.key) AS place
      FROM found f
      JOIN dataset_versions v ON v.dataset_version = f.version
      JOIN named_outputs n ON n.dataset_uuid = v.dataset_uuid
)
SELECT direction, depth, dataset, dag, job, output, dataset_uuid, dataset_version, partition_key,
       task_id, attempt, is_current, via_version, via_key
  FROM named WHERE place <= %(limit)s ORDER BY direction, place
"""


async def get_partition_lineage(
    conn: Conn, dataset_version: UUID, partition_key: str
) -> tuple[list[LineagePartition], list[LineagePartition]]:
    """List the partitions upstream and downstream of a partition, nearest first."""
    values = {
        "dataset_version": dataset_version,
        "partition_key": partition_key,
        "max_depth": _MAX_DEPTH,
        "limit": MAX_LINKS,
    }
    rows = await fetch_dicts(conn, _LINKS, values)
    return (
        [LineagePartition(**row) for row in rows if row["direction"] == "up"],
        [LineagePartition(**row) for row in rows if row["direction"] == "down"],
    )


_WRITER = """
SELECT task_id, attempt FROM partitions
 WHERE dataset_version = %(dataset_version)s AND partition_key = %(partition_key)s
"""


async def get_writer(conn: Conn, dataset_version: UUID, partition_key: str) -> tuple[UUID, int]:
    """Return the task and attempt that wrote a committed partition. Raises NotFound."""
    values = {"dataset_version": dataset_version, "partition_key": partition_key}
    row = await (await conn.execute(_WRITER, values)).fetchone()
    if row is None:
        raise NotFound(
            f"no partition {partition_key!r} is committed; `trace dataset NAME` lists them"
        )
    return row[0], row[1]


_NEIGHBOURS = """
SELECT w.direction, w.depth, n.dataset, n.dag, n.job, n.output, n.dataset_uuid
  FROM walk_lineage(%(dataset_uuid)s, %(dataset_version)s, %(max_depth)s) w
  JOIN named_outputs n USING (dataset_uuid)
 ORDER BY w.depth, n.dag, n.job, n.output
"""


async def get_dataset_lineage(
    conn: Conn, dataset_uuid: UUID
) -> tuple[list[LineageDataset], list[LineageDataset]]:
    """List the datasets upstream and downstream of a dataset, by the deployed definitions."""
    return await _list_neighbours(conn, dataset_uuid=dataset_uuid)


async def get_generation_lineage(
    conn: Conn, dataset_version: UUID
) -> tuple[list[LineageDataset], list[LineageDataset]]:
    """List the datasets upstream and downstream of a generation, by the definitions that made it."""
    return await _list_neighbours(conn, dataset_version=dataset_version)


async def _list_neighbours(
    conn: Conn, *, dataset_uuid: UUID | None = None, dataset_version: UUID | None = None
) -> tuple[list[LineageDataset], list[LineageDataset]]:
    values = {
        "dataset_uuid": dataset_uuid,
        "dataset_version": dataset_version,
        "max_depth": _MAX_DEPTH,
    }
    rows = await fetch_dicts(conn, _NEIGHBOURS, values)
    return (
        [LineageDataset(**row) for row in rows if row["direction"] == "up"],
        [LineageDataset(**row) for row in rows if row["direction"] == "down"],
    )


_EDGES = """
SELECT DISTINCT i.dataset_uuid AS from_uuid, o.dataset_uuid AS to_uuid
  FROM job_inputs i JOIN job_outputs o ON o.revision_id = i.revision_id
  LEFT JOIN jobs j ON j.revision_id = i.revision_id AND j.active
 WHERE i.dataset_uuid = ANY(%(datasets)s) AND o.dataset_uuid = ANY(%(datasets)s)
   AND (%(all_revisions)s OR j.job_id IS NOT NULL)
"""


async def list_links(conn: Conn, datasets: list[UUID], *, all_revisions: bool) -> list[LineageLink]:
    """List which of these datasets is made from which, by deployed or by all definitions."""
    values = {"datasets": datasets, "all_revisions": all_revisions}
    return await fetch_all(conn, LineageLink, _EDGES, values)


# --- recording ----------------------------------------------------------------------------------

# Records the partitions that `pinned_inputs` chooses; `*` means the whole input. An input partition
# outside the attempt's snapshot was rewritten while the attempt ran. It is then unknown which attempt
# wrote the rows that were read.
_RECORD_LINEAGE = """
INSERT INTO partition_inputs AS l (
       dataset_version, partition_key, input_version, input_key, input_task_id, input_attempt,
       input_hash, task_id, attempt)
SELECT DISTINCT ON (o.dataset_version, o.partition_key, v.dataset_version, p.partition_key)
       o.dataset_version, o.partition_key, v.dataset_version, p.partition_key,
       p.task_id, p.attempt, p.content_hash, t.task_id, t.attempt
  FROM tasks t
  JOIN job_inputs i ON i.revision_id = t.revision_id AND i.reads
  JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
  JOIN dataset_versions v
    ON v.dataset_version = input_generation(i, d, t.dataset_uuid, t.dataset_version)
 CROSS JOIN LATERAL (SELECT t.is_refresh AND i.time_column IS NOT NULL) AS m (is_mapped)
 CROSS JOIN LATERAL (
       SELECT '*' AS partition_key, NULL::uuid AS task_id, NULL::int AS attempt,
              hash_of_generation(v.dataset_version, t.pinned_snapshot) AS content_hash
        WHERE t.range_start IS NULL AND NOT m.is_mapped
          AND NOT reads_one_key(v.dataset_version, t)
        UNION ALL
       SELECT q.partition_key, CASE WHEN s.is_seen THEN q.task_id END,
              CASE WHEN s.is_seen THEN q.attempt END, CASE WHEN s.is_seen THEN q.content_hash END
         FROM partitions q
        CROSS JOIN LATERAL (
              SELECT pg_visible_in_snapshot(q.commit_xid, t.pinned_snapshot)) AS s (is_seen)
        WHERE t.range_start IS NOT NULL AND q.dataset_version = v.dataset_version
          AND overlaps_blocks(q, v.generation_no, t.range_start, t.range_end)
        UNION ALL
       SELECT q.partition_key, q.task_id, q.attempt, q.content_hash FROM partitions q
        WHERE t.range_start IS NULL AND NOT m.is_mapped
          AND q.dataset_version = v.dataset_version
          AND q.partition_key = t.partition_key AND reads_one_key(v.dataset_version, t)
        UNION ALL
       SELECT q.partition_key, CASE WHEN s.is_seen THEN q.task_id END,
              CASE WHEN s.is_seen THEN q.attempt END, CASE WHEN s.is_seen THEN q.content_hash END
         FROM job_revisions own
         JOIN time_keys k ON k.job_id = own.job_id AND k.generation_hash = own.generation_hash
          AND k.input_version = v.dataset_version AND k.time_key = t.partition_key
         JOIN partitions q ON q.dataset_version = k.input_version
          AND q.partition_key = k.input_key
        CROSS JOIN LATERAL (
              SELECT pg_visible_in_snapshot(q.commit_xid, t.pinned_snapshot)) AS s (is_seen)
        WHERE m.is_mapped AND own.revision_id = t.revision_id
 ) p
 CROSS JOIN unnest(%(versions)s::uuid[], %(keys)s::text[]) AS o (dataset_version, partition_key)
 WHERE t.task_id = %(task_id)s
ON CONFLICT (dataset_version, partition_key, input_version, input_key) DO UPDATE
   SET input_task_id = EXCLUDED.input_task_id, input_attempt = EXCLUDED.input_attempt,
       input_hash = EXCLUDED.input_hash, task_id = EXCLUDED.task_id, attempt = EXCLUDED.attempt
"""


async def record(conn: Conn, fence: Fence, moved: Sequence[MovedPartition]) -> None:
    """Record which partitions the attempt read to write these."""
    values = {
        "task_id": fence.task_id,
        "versions": [m.dataset_version for m in moved],
        "keys": [m.partition_key for m in moved],
    }
    await conn.execute(_RECORD_LINEAGE, values)
