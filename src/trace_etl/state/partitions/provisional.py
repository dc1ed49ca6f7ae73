"""Partitions with blocks that were not final when they were read: read them again, confirm them."""

from collections.abc import Sequence

from psycopg.types.json import Jsonb

from trace_etl.model.task import Fence
from trace_etl.state.db.pool import Conn
from trace_etl.state.partitions.new_partition import NewPartition

# The attempts of the task end with `not_final`, and do not count, until the blocks are final.
_RECHECK = """
SELECT task_id FROM create_tasks(ARRAY(
    SELECT with_parameters(
               new_task(org_id, job_id, revision_id, runtime, bulk,
                        concat_ws(':', 'recheck', task_id, attempt), max_attempts, max_concurrency,
                        timeout_seconds, lease_seconds, dataset_uuid, dataset_version, partition_key,
                        range_start, range_end, cursor_value),
               '{"recheck": true}')
      FROM tasks WHERE task_id = %(task_id)s))
"""


async def recheck(conn: Conn, fence: Fence) -> None:
    """Create the task that reads the blocks of a task again when they are final."""
    await conn.execute(_RECHECK, {"task_id": fence.task_id})


_CONFIRM = """
UPDATE partitions p SET verified = n.verified
  FROM unnest(%(versions)s::uuid[], %(keys)s::text[], %(verified)s::jsonb[])
       AS n (dataset_version, partition_key, verified)
 WHERE p.dataset_version = n.dataset_version AND p.partition_key = n.partition_key
"""


async def confirm(conn: Conn, items: Sequence[NewPartition]) -> None:
    """Record that the blocks of committed partitions are final. Their rows are the same."""
    values = {
        "versions": [item.dataset_version for item in items],
        "keys": [item.partition_key for item in items],
        "verified": [Jsonb(item.verified) for item in items],
    }
    await conn.execute(_CONFIRM, values)
