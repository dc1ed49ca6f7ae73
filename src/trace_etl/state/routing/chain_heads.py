"""How far the followers of chains are behind the head."""

from trace_etl.api.task.events import ChainHead
from trace_etl.model.task import Fence
from trace_etl.state.db.pool import Conn

_RECORD = """
INSERT INTO chain_heads AS h (task_id, head, head_at, position, position_at)
SELECT task_id, %(head)s, to_timestamp(%(head_time)s), %(position)s, to_timestamp(%(position_time)s)
  FROM tasks
 WHERE task_id = %(task_id)s AND attempt = %(attempt)s AND lease_token = %(lease_token)s
   AND status = 'Running'
ON CONFLICT (task_id) DO UPDATE
   SET head = EXCLUDED.head, head_at = EXCLUDED.head_at, position = EXCLUDED.position,
       position_at = EXCLUDED.position_at, reported_at = now()
"""


async def record(conn: Conn, fence: Fence, head: ChainHead) -> bool:
    """Record the newest report of a follower. False: the attempt has no lease.

    The commit does not wait for the disk: a lost report is replaced by the next one.
    """
    await conn.execute("SET LOCAL synchronous_commit = off")
    values = {
        "task_id": fence.task_id,
        "attempt": fence.attempt,
        "lease_token": fence.lease_token,
        **head.model_dump(),
    }
    return (await conn.execute(_RECORD, values)).rowcount == 1
