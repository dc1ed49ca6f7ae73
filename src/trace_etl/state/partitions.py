"""Partition pointers: the only thing that makes written objects visible."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.errors import ExclusionViolation
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from trace_etl.model.errors import Forbidden, PartitionOverlap
from trace_etl.model.task import Fence
from trace_etl.state.pool import Conn


@dataclass(frozen=True)
class NewPartition:
    dataset_version: UUID
    partition_key: str
    range_start: int | None
    range_end: int | None
    storage_ref: dict[str, Any]
    row_count: int
    byte_count: int
    columns: list[dict[str, str]]


# A range that swallows whole older partitions replaces them; one that cuts through them is refused.
_REPLACE_COVERED = """
DELETE FROM partitions
 WHERE dataset_version = %(dataset_version)s AND partition_key <> %(partition_key)s
   AND range_start >= %(range_start)s AND range_end <= %(range_end)s
"""
_POINT = """
INSERT INTO partitions (dataset_version, generation_no, partition_key, range_start, range_end,
                        storage_ref, row_count, byte_count, columns, task_id, attempt)
SELECT v.dataset_version, v.generation_no, %(partition_key)s, %(range_start)s, %(range_end)s,
       %(storage_ref)s, %(row_count)s, %(byte_count)s, %(columns)s, %(task_id)s, %(attempt)s
  FROM dataset_versions v JOIN tasks t ON t.task_id = %(task_id)s
 WHERE v.dataset_version = %(dataset_version)s
   -- A task of a range writes inside it: nobody's token covers its neighbours.
   AND (t.range_start IS NULL OR %(range_start)s::bigint IS NULL
        OR (%(range_start)s >= t.range_start AND %(range_end)s <= t.range_end))
ON CONFLICT (dataset_version, partition_key) DO UPDATE
   SET storage_ref = EXCLUDED.storage_ref, row_count = EXCLUDED.row_count,
       byte_count = EXCLUDED.byte_count, columns = EXCLUDED.columns,
       task_id = EXCLUDED.task_id, attempt = EXCLUDED.attempt, committed_at = now()
"""


async def point(conn: Conn, fence: Fence, new: NewPartition) -> None:
    """Point a partition at an attempt's prefix. Raises PartitionOverlap, Forbidden."""
    values = {
        "dataset_version": new.dataset_version,
        "partition_key": new.partition_key,
        "range_start": new.range_start,
        "range_end": new.range_end,
        "storage_ref": Jsonb(new.storage_ref),
        "row_count": new.row_count,
        "byte_count": new.byte_count,
        "columns": Jsonb(new.columns),
        "task_id": fence.task_id,
        "attempt": fence.attempt,
    }
    if new.range_start is not None:
        await conn.execute(_REPLACE_COVERED, values)
    try:
        pointed = (await conn.execute(_POINT, values)).rowcount
    except ExclusionViolation as error:
        raise PartitionOverlap(
            f"blocks {new.partition_key} cut through a partition that is already committed; "
            "use the ranges it was split into, or one that covers them whole"
        ) from error
    if not pointed:
        raise Forbidden(f"blocks {new.partition_key} are not this task's to publish")


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


_PARTITION_COLUMNS = """partition_key, range_start, range_end, storage_ref, row_count, byte_count,
       columns, task_id, attempt, committed_at"""

_ALL = f"""
SELECT {_PARTITION_COLUMNS} FROM partitions
 WHERE dataset_version = %(dataset_version)s ORDER BY range_start, partition_key
"""


async def committed(conn: Conn, dataset_version: UUID) -> list[Partition]:
    """Every committed partition of a generation."""
    async with conn.cursor(row_factory=class_row(Partition)) as cursor:
        await cursor.execute(_ALL, {"dataset_version": dataset_version})
        return await cursor.fetchall()
