"""How far each consumer has read."""

from uuid import UUID

from trace_etl.api.user.datasets import ConsumerItem
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all

# From where on a job reads: what it has not read yet, and with it the whole of a partition that
# would be cut through otherwise. A late cursor can leave its consumer in the middle of one, which
# stands there from before something was taken back.
_REACHED = """
SELECT least(c.cursor_value, cut.first - 1)
  FROM tasks t JOIN job_revisions r ON r.revision_id = t.revision_id
  JOIN consumer_cursors c ON c.job_id = t.job_id AND c.generation_hash = r.generation_hash
   AND c.dataset_version = t.dataset_version
 CROSS JOIN LATERAL (
       SELECT min(p.range_start) AS first
         FROM job_outputs o
         JOIN dataset_versions v ON v.dataset_version = o.dataset_version
         JOIN partitions p ON p.dataset_version = o.dataset_version
          AND box(point(p.generation_no, p.range_start), point(p.generation_no, p.range_end))
              && box(point(v.generation_no, c.cursor_value),
                     point(v.generation_no, c.cursor_value + 1))
        WHERE o.revision_id = t.revision_id
          AND p.range_start <= c.cursor_value AND c.cursor_value < p.range_end) cut
 WHERE t.task_id = %(task_id)s
"""


async def reached(conn: Conn, task_id: UUID) -> int | None:
    """The cursor after which a task is to read the dataset that woke it; None: all of it."""
    row = await (await conn.execute(_REACHED, {"task_id": task_id})).fetchone()
    return row[0] if row else None


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


async def list_consumers(
    conn: Conn, dataset_uuid: UUID, dataset_version: UUID
) -> list[ConsumerItem]:
    """List how far each active consumer of a generation has read it."""
    values = {"dataset_uuid": dataset_uuid, "dataset_version": dataset_version}
    return await fetch_all(conn, ConsumerItem, _OF_DATASET, values)
