"""The output of attempts. It is bounded, and deleted with its task."""

from uuid import UUID

from trace_etl.api.user.tasks.tasks import LogPart
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


# A part belongs to the window if it overlaps it.
_LIST = """
SELECT position, text, logged_at FROM attempt_logs
 WHERE task_id = %(task_id)s AND attempt = %(attempt)s
   AND position + octet_length(text) > %(start)s AND position < %(end)s
 ORDER BY position
"""


async def list_parts(
    conn: Conn, task_id: UUID, attempt: int, *, start: int, end: int
) -> list[LogPart]:
    """List the parts of a window, cut to it. A character belongs to the window if its first byte does."""
    values = {"task_id": task_id, "attempt": attempt, "start": start, "end": end}
    parts = await fetch_all(conn, LogPart, _LIST, values)
    return [cut for part in parts if (cut := _cut(part, start, end)) is not None]


def _cut(part: LogPart, start: int, end: int) -> LogPart | None:
    content = part.text.encode()
    first = _find_character(content, start - part.position)
    last = _find_character(content, end - part.position)
    if (first, last) == (0, len(content)):
        return part
    cut = {"position": part.position + first, "text": content[first:last].decode()}
    return part.model_copy(update=cut) if first < last else None


def _find_character(content: bytes, at: int) -> int:
    """Return the next position from which a character begins, at most the end."""
    at = min(max(at, 0), len(content))
    while at < len(content) and content[at] & 0xC0 == 0x80:
        at += 1
    return at


_SIZE = """
SELECT coalesce(max(position + octet_length(text)), 0) FROM attempt_logs
 WHERE task_id = %(task_id)s AND attempt = %(attempt)s
"""


async def get_size(conn: Conn, task_id: UUID, attempt: int) -> int:
    """Return the number of bytes that an attempt has written so far."""
    row = await (await conn.execute(_SIZE, {"task_id": task_id, "attempt": attempt})).fetchone()
    return row[0] if row else 0
