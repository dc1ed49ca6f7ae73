"""The output of attempts. It is bounded, and deleted with its task."""

from uuid import UUID

from trace_etl.api.user.tasks import LogPart
from trace_etl.model.task import Fence
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all

MAX_LOG_BYTES = 2 * 1024 * 1024
"""Bytes kept of one attempt. Workers send less; this limits a faulty worker."""

_APPEND = """
WITH live AS (
    SELECT task_id, attempt FROM tasks
     WHERE task_id = %(task_id)s AND attempt = %(attempt)s AND lease_token = %(lease_token)s
       AND status = 'Running'
), stored AS (
    SELECT coalesce(sum(octet_length(text)), 0) AS bytes FROM attempt_logs
     WHERE task_id = %(task_id)s AND attempt = %(attempt)s
), added AS (
    INSERT INTO attempt_logs (task_id, attempt, position, text)
    SELECT l.task_id, l.attempt, %(position)s, %(text)s FROM live l, stored s
     WHERE s.bytes + octet_length(%(text)s) <= %(limit)s
    ON CONFLICT DO NOTHING
)
SELECT count(*) FROM live
"""


async def append(conn: Conn, fence: Fence, position: int, text: str) -> bool:
    """Add a part. A repeated or excessive one changes nothing. False: the attempt has no lease."""
    values = {
        "task_id": fence.task_id,
        "attempt": fence.attempt,
        "lease_token": fence.lease_token,
        "position": position,
        "text": text,
        "limit": MAX_LOG_BYTES,
    }
    row = await (await conn.execute(_APPEND, values)).fetchone()
    return bool(row and row[0])


_LIST = """
SELECT position, text, logged_at FROM attempt_logs
 WHERE task_id = %(task_id)s AND attempt = %(attempt)s AND position >= %(start)s
 ORDER BY position LIMIT %(limit)s
"""


async def list_parts(
    conn: Conn, task_id: UUID, attempt: int, *, start: int, limit: int
) -> list[LogPart]:
    """List the parts of an attempt from a position on."""
    values = {"task_id": task_id, "attempt": attempt, "start": start, "limit": limit}
    return await fetch_all(conn, LogPart, _LIST, values)
