"""Read how far each consumer has read its inputs."""

from uuid import UUID

from trace_etl.api.user.data.datasets import ConsumerItem
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all

# A task reads the blocks after its consumer's cursor. If the cursor is inside an output partition, the task
# reads from the start of that partition, because a task replaces whole partitions. A late cursor can be
# inside a partition that was committed before an invalidation.
_FIND_START = """
SELECT least(c.cursor_value, cut.first_block - 1)
  FROM tasks t JOIN job_revisions r ON r.revision_id = t.revision_id
  JOIN consumer_cursors c ON c.job_id = t.job_id AND c.generation_hash = r.generation_hash
   AND c.dataset_version = t.dataset_version
 CROSS JOIN LATERAL (
       SELECT min(p.range_start) AS first_block
         FROM job_outputs o
         JOIN dataset_versions v ON v.dataset_version = o.dataset_version
         JOIN partitions p ON p.dataset_version = o.dataset_version
          AND overlaps_blocks(p, v.generation_no, c.cursor_value, c.cursor_value + 1)
        WHERE o.revision_id = t.revision_id
          AND p.range_start <= c.cursor_value AND c.cursor_value < p.range_end) cut
 WHERE t.task_id = %(task_id)s
"""


async def find_start(conn: Conn, task_id: UUID) -> int | None:
    """Return the cursor after which a task reads its triggering dataset, or None to read all of it."""
    row = await (await conn.execute(_FIND_START, {"task_id": task_id})).fetchone()
    return row[0] if row else None


_LIST_CONSUMERS = """
SELECT g.name AS dag, j.name AS job, c.cursor_value AS cursor, c.advanced_at
  FROM consumer_cursors c
  JOIN jobs j ON j.job_id = c.job_id AND j.active
  JOIN job_revisions r
    ON r.revision_id = j.revision_id AND r.generation_hash = c.generation_hash
  JOIN dags g ON g.dag_id = j.dag_id
 WHERE c.dataset_uuid = %(dataset_uuid)s AND c.dataset_version = %(dataset_version)s
 ORDER BY g.name, j.name
"""


async def list_consumers(
    conn: Conn, dataset_uuid: UUID, dataset_version: UUID
) -> list[ConsumerItem]:
    """List how far each active consumer of a generation has read it."""
    values = {"dataset_uuid": dataset_uuid, "dataset_version": dataset_version}
    return await fetch_all(conn, ConsumerItem, _LIST_CONSUMERS, values)
