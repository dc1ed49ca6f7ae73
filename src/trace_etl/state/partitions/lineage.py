"""Read the lineage of partitions and datasets, upstream and downstream."""

from uuid import UUID

from trace_etl.api.user.data.lineage import LineageDataset, LineagePartition
from trace_etl.model.errors import NotFound
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_dicts

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
        raise NotFound(f"no partition {partition_key!r} is committed; `trace dataset` lists them")
    return row[0], row[1]


_NEIGHBOURS = """
WITH RECURSIVE made_from AS NOT MATERIALIZED (
    SELECT d.dataset_uuid, i.dataset_uuid AS input_uuid
      FROM dataset_producers d JOIN jobs j ON j.job_id = d.job_id
      JOIN job_inputs i ON i.revision_id = j.revision_id
), read_by AS NOT MATERIALIZED (
    SELECT i.dataset_uuid, o.dataset_uuid AS output_uuid
      FROM job_inputs i JOIN jobs j ON j.revision_id = i.revision_id AND j.active
      JOIN job_outputs o ON o.revision_id = j.revision_id
), above (depth, dataset_uuid) AS (
    SELECT 1, input_uuid FROM made_from WHERE dataset_uuid = %(dataset_uuid)s
     UNION
    SELECT a.depth + 1, m.input_uuid FROM above a JOIN made_from m USING (dataset_uuid)
     WHERE a.depth < %(max_depth)s
), below (depth, dataset_uuid) AS (
    SELECT 1, output_uuid FROM read_by WHERE dataset_uuid = %(dataset_uuid)s
     UNION
    SELECT b.depth + 1, r.output_uuid FROM below b JOIN read_by r USING (dataset_uuid)
     WHERE b.depth < %(max_depth)s
), found AS (
    SELECT 'up' AS direction, * FROM above
     UNION ALL
    SELECT 'down', * FROM below
)
SELECT f.direction, min(f.depth) AS depth, n.dataset, n.dag, n.job, n.output, n.dataset_uuid
  FROM found f JOIN named_outputs n USING (dataset_uuid)
 GROUP BY f.direction, n.dataset, n.dag, n.job, n.output, n.dataset_uuid
 ORDER BY depth, n.dag, n.job, n.output
"""


async def get_dataset_lineage(
    conn: Conn, dataset_uuid: UUID
) -> tuple[list[LineageDataset], list[LineageDataset]]:
    """List the datasets upstream and downstream of a dataset, by the deployed definitions."""
    rows = await fetch_dicts(
        conn, _NEIGHBOURS, {"dataset_uuid": dataset_uuid, "max_depth": _MAX_DEPTH}
    )
    return (
        [LineageDataset(**row) for row in rows if row["direction"] == "up"],
        [LineageDataset(**row) for row in rows if row["direction"] == "down"],
    )
