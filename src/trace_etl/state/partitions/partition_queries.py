"""Read committed partitions. Only a commit makes written objects visible."""

from typing import Any
from uuid import UUID

from trace_etl.api.user.data.datasets import GenerationItem, GenerationName, PartitionItem
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all


class Partition(PartitionItem):
    """A committed partition as the API returns it, with its columns."""

    columns: list[dict[str, str]]


_STORAGE = """
SELECT storage_ref FROM partitions
 WHERE dataset_version = %(dataset_version)s AND partition_key = %(key)s
"""


async def find_storage(conn: Conn, dataset_version: UUID, key: str) -> dict[str, str] | None:
    """Return where a committed partition is stored; None if there is none."""
    values = {"dataset_version": dataset_version, "key": key}
    row = await (await conn.execute(_STORAGE, values)).fetchone()
    return row[0] if row else None


# Partitions without blocks come first, by key. Each half is read in the order of an index, up to the limit.
_PAGE = """
SELECT partition_key, range_start AS start, range_end AS end, storage_ref, row_count, byte_count,
       columns, task_id, attempt, committed_at, config_hash
  FROM ((SELECT * FROM partitions
          WHERE dataset_version = %(dataset_version)s AND range_start IS NULL
            AND (-1, partition_key) > (%(after_start)s, %(after_key)s)
          ORDER BY partition_key LIMIT %(limit)s)
         UNION ALL
        (SELECT * FROM partitions
          WHERE dataset_version = %(dataset_version)s AND range_start >= %(after_start)s
            AND (range_start, partition_key) > (%(after_start)s, %(after_key)s)
          ORDER BY range_start, partition_key LIMIT %(limit)s)) p
 ORDER BY coalesce(range_start, -1), partition_key LIMIT %(limit)s
"""


async def list_partitions(
    conn: Conn, dataset_version: UUID, *, after: tuple[Any, ...] | None, limit: int
) -> list[Partition]:
    """List one page of the committed partitions of a generation, by first block."""
    start, key = after or (-2, "")
    values = {"after_start": start, "after_key": key, "limit": limit}
    return await fetch_all(conn, Partition, _PAGE, {"dataset_version": dataset_version, **values})


# Partitions do not overlap: a gap begins where the previous partition ends. A generation without a gap has as
# many blocks as its extent, so its partitions are not read.
_GAPS = """
SELECT reached + 1, range_start - 1 FROM (
    SELECT range_start, lag(range_end) OVER (ORDER BY range_start) AS reached
      FROM partitions WHERE dataset_version = %(dataset_version)s AND range_start IS NOT NULL
       AND (SELECT sum(blocks) FROM generation_totals WHERE dataset_version = %(dataset_version)s)
         < (SELECT last_block(%(dataset_version)s) - first_block(%(dataset_version)s) + 1)) p
 WHERE range_start > reached + 1
 ORDER BY range_start LIMIT %(limit)s
"""


async def list_gaps(
    conn: Conn, dataset_version: UUID, *, limit: int = 1000
) -> list[tuple[int, int]]:
    """List the block ranges without a partition between the first and last committed block."""
    cursor = await conn.execute(_GAPS, {"dataset_version": dataset_version, "limit": limit})
    return [(row[0], row[1]) for row in await cursor.fetchall()]


_GENERATION_NAMES = """
SELECT v.dataset_version, v.generation_no,
       CASE v.dataset_version WHEN d.dataset_version THEN 'current'
                              WHEN d.building_version THEN 'building' ELSE 'old' END AS state,
       v.created_at
  FROM datasets d JOIN dataset_versions v USING (dataset_uuid)
 WHERE d.dataset_uuid = %(dataset_uuid)s ORDER BY v.generation_no DESC LIMIT %(limit)s
"""


async def list_generation_names(
    conn: Conn, dataset_uuid: UUID, *, limit: int = 100
) -> list[GenerationName]:
    """List the generations of a dataset, newest first, without counting their partitions."""
    values = {"dataset_uuid": dataset_uuid, "limit": limit}
    return await fetch_all(conn, GenerationName, _GENERATION_NAMES, values)


_GENERATIONS = """
SELECT v.dataset_version, v.generation_no,
       CASE v.dataset_version WHEN d.dataset_version THEN 'current'
                              WHEN d.building_version THEN 'building' ELSE 'old' END AS state,
       v.created_at, t.*
  FROM datasets d JOIN dataset_versions v USING (dataset_uuid)
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(partitions), 0)::bigint AS partitions,
              coalesce(sum(row_count), 0)::bigint AS row_count,
              coalesce(sum(byte_count), 0)::bigint AS byte_count
         FROM generation_totals WHERE dataset_version = v.dataset_version) t
 WHERE d.dataset_uuid = %(dataset_uuid)s ORDER BY v.generation_no DESC LIMIT %(limit)s
"""


async def list_generations(
    conn: Conn, dataset_uuid: UUID, *, limit: int = 100
) -> list[GenerationItem]:
    """List the generations of a dataset, newest first."""
    return await fetch_all(
        conn, GenerationItem, _GENERATIONS, {"dataset_uuid": dataset_uuid, "limit": limit}
    )
