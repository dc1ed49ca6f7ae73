"""Record which days or hours the rows of input partitions belong to, and request these partitions."""

from collections.abc import Sequence

from psycopg.types.json import Jsonb

from trace_etl.api.task.lifecycle import MappedPartition
from trace_etl.model.errors import Forbidden
from trace_etl.model.task import Fence
from trace_etl.state.db.pool import Conn

_IS_MAPPING = """
SELECT r.partition_by IS NOT NULL AND NOT t.is_refresh AND NOT EXISTS (
           SELECT FROM jsonb_populate_recordset(NULL::mapped_partition, %(found)s) f
            WHERE NOT EXISTS (
                  SELECT FROM job_inputs i JOIN datasets d USING (dataset_uuid)
                   WHERE i.revision_id = t.revision_id AND i.time_column IS NOT NULL
                     AND input_generation(i, d, t.dataset_uuid, t.dataset_version)
                         = f.dataset_version))
  FROM tasks t JOIN job_revisions r USING (revision_id) WHERE t.task_id = %(task_id)s
"""
_RECORD = """
SELECT count(*) FROM enqueue(ARRAY(
    SELECT wake_entry(task_id, runtime) FROM record_time_keys(%(task_id)s, ARRAY(
        SELECT f::mapped_partition
          FROM jsonb_populate_recordset(NULL::mapped_partition, %(found)s) f))))
"""


async def record(conn: Conn, fence: Fence, mapped: Sequence[MappedPartition]) -> None:
    """Record what a mapping task found. Raises Forbidden if the task does not map these partitions."""
    found = Jsonb([item.model_dump(mode="json") for item in mapped])
    values = {"task_id": fence.task_id, "found": found}
    row = await (await conn.execute(_IS_MAPPING, values)).fetchone()
    if row is None or not row[0]:
        raise Forbidden(
            "mapped_partitions: this task does not map these partitions; report only inputs with a "
            "time column, in a job with time partitions"
        )
    await conn.execute(_RECORD, values)
