"""Partition pointers as they stand: the only thing that makes written objects visible."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.state.pool import Conn


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
