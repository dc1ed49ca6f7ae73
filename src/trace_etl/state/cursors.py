"""How far each consumer has read."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.state.pool import Conn

_REACHED = """
SELECT c.cursor_value
  FROM tasks t JOIN job_revisions r ON r.revision_id = t.revision_id
  JOIN consumer_cursors c ON c.job_id = t.job_id AND c.generation_hash = r.generation_hash
   AND c.dataset_version = t.dataset_version
 WHERE t.task_id = %(task_id)s
"""


async def reached(conn: Conn, task_id: UUID) -> int | None:
    """The cursor up to which a task's job has read the dataset that woke the task."""
    row = await (await conn.execute(_REACHED, {"task_id": task_id})).fetchone()
    return row[0] if row else None


@dataclass(frozen=True)
class CursorView:
    dag: str
    job: str
    cursor: int
    advanced_at: datetime


_OF_DATASET = """
SELECT g.name AS dag, j.name AS job, c.cursor_value AS cursor, c.advanced_at
  FROM consumer_cursors c
  JOIN jobs j ON j.job_id = c.job_id AND j.active
  JOIN job_revisions r
    ON r.revision_id = j.revision_id AND r.generation_hash = c.generation_hash
  JOIN dags g ON g.dag_id = j.dag_id
 WHERE c.dataset_uuid = %(dataset_uuid)s AND c.dataset_version = %(dataset_version)s
 ORDER BY g.name, j.name
"""


async def of_dataset(conn: Conn, dataset_uuid: UUID, dataset_version: UUID) -> list[CursorView]:
    """How far the live consumers of a generation have read it."""
    values = {"dataset_uuid": dataset_uuid, "dataset_version": dataset_version}
    async with conn.cursor(row_factory=class_row(CursorView)) as cursor:
        await cursor.execute(_OF_DATASET, values)
        return await cursor.fetchall()
