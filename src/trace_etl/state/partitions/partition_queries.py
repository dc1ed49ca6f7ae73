"""Partition pointers as they stand: the only thing that makes written objects visible."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.state.db.pool import Conn


@dataclass(frozen=True)
class Partition:
    partition_key: str
    range_start: int | None
    range_end: int | None
    storage_ref: dict[str, Any]
    row_count: int
    byte_count: int
    columns: list[dict[str, str]]
    task_id: UUID
    attempt: int
    committed_at: datetime


_ALL = """
SELECT partition_key, range_start, range_end, storage_ref, row_count, byte_count, columns, task_id,
       attempt, committed_at
  FROM partitions
 WHERE dataset_version = %(dataset_version)s ORDER BY range_start, partition_key
"""


async def committed(conn: Conn, dataset_version: UUID) -> list[Partition]:
    """Every committed partition of a generation."""
    async with conn.cursor(row_factory=class_row(Partition)) as cursor:
        await cursor.execute(_ALL, {"dataset_version": dataset_version})
        return await cursor.fetchall()


_PAGE = """
SELECT partition_key, range_start, range_end, storage_ref, row_count, byte_count, columns, task_id,
       attempt, committed_at
  FROM partitions
 WHERE dataset_version = %(dataset_version)s
   AND (coalesce(range_start, -1), partition_key) > (%(after_start)s, %(after_key)s)
 ORDER BY coalesce(range_start, -1), partition_key LIMIT %(limit)s
"""


async def page(
    conn: Conn, dataset_version: UUID, *, after: tuple[Any, ...] | None, limit: int
) -> list[Partition]:
    """Some committed partitions of a generation, by their blocks."""
    start, key = after or (-2, "")
    values = {"after_start": start, "after_key": key, "limit": limit}
    async with conn.cursor(row_factory=class_row(Partition)) as cursor:
        await cursor.execute(_PAGE, {"dataset_version": dataset_version, **values})
        return await cursor.fetchall()


# They do not overlap, so the one before ends where the gap begins.
_GAPS = """
SELECT reached + 1, range_start - 1 FROM (
    SELECT range_start, lag(range_end) OVER (ORDER BY range_start) AS reached
      FROM partitions WHERE dataset_version = %(dataset_version)s AND range_start IS NOT NULL) p
 WHERE range_start > reached + 1
 ORDER BY 1 LIMIT %(limit)s
"""


async def gaps(conn: Conn, dataset_version: UUID, *, limit: int = 1000) -> list[tuple[int, int]]:
    """The holes between the first and the last block that is committed."""
    cursor = await conn.execute(_GAPS, {"dataset_version": dataset_version, "limit": limit})
    return [(row[0], row[1]) for row in await cursor.fetchall()]


@dataclass(frozen=True)
class Generation:
    """A generation of a dataset, and how much of it there is."""

    dataset_version: UUID
    generation_no: int
    state: str
    created_at: datetime
    partitions: int
    row_count: int
    byte_count: int


_GENERATIONS = """
SELECT v.dataset_version, v.generation_no,
       CASE v.dataset_version WHEN d.dataset_version THEN 'current'
                              WHEN d.building_version THEN 'building' ELSE 'old' END AS state,
       v.created_at, p.*
  FROM datasets d JOIN dataset_versions v USING (dataset_uuid)
 CROSS JOIN LATERAL (
       SELECT count(*) AS partitions, coalesce(sum(row_count), 0)::bigint AS row_count,
              coalesce(sum(byte_count), 0)::bigint AS byte_count
         FROM partitions WHERE dataset_version = v.dataset_version) p
 WHERE d.dataset_uuid = %(dataset_uuid)s ORDER BY v.generation_no DESC LIMIT %(limit)s
"""


async def generations(conn: Conn, dataset_uuid: UUID, *, limit: int = 100) -> list[Generation]:
    """The generations of a dataset, newest first."""
    async with conn.cursor(row_factory=class_row(Generation)) as cursor:
        await cursor.execute(_GENERATIONS, {"dataset_uuid": dataset_uuid, "limit": limit})
        return await cursor.fetchall()
