"""Batches whose rows the sink has written: their artifacts may be deleted."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all


@dataclass(frozen=True)
class SweepableBatch:
    """A batch that is in its table."""

    publish_id: UUID
    org_id: UUID
    dataset_uuid: UUID
    task_id: UUID
    attempt: int
    batch_uri: str
    batch_size_bytes: int | None


# A waiting or failed batch can be delivered again, so its artifact stays, also if another record names
# the same artifact.
_FIND_DUE = """
SELECT b.publish_id, b.org_id, b.dataset_uuid, b.task_id, b.attempt, b.batch_uri, b.batch_size_bytes
  FROM buffer_publishes b
 WHERE b.sunk_at < now() - %(retention)s AND b.swept_at IS NULL
   AND (%(org_id)s::uuid IS NULL OR b.org_id = %(org_id)s)
   AND NOT EXISTS (
       SELECT FROM buffer_publishes o
        WHERE o.task_id = b.task_id AND o.attempt = b.attempt AND o.batch_uri = b.batch_uri
          AND o.sunk_at IS NULL)
 ORDER BY b.sunk_at LIMIT %(limit)s
"""


async def find_due(
    conn: Conn, *, retention: timedelta, org_id: UUID | None, limit: int
) -> list[SweepableBatch]:
    """Return batches that were written before the retention and whose artifact was not deleted."""
    values = {"retention": retention, "org_id": org_id, "limit": limit}
    return await fetch_all(conn, SweepableBatch, _FIND_DUE, values)


_MARK_SWEPT = """
UPDATE buffer_publishes SET swept_at = now() WHERE publish_id = ANY(%(ids)s) AND swept_at IS NULL
"""


async def mark_swept(conn: Conn, publish_ids: list[UUID]) -> None:
    """Record that the artifacts of batches are deleted."""
    await conn.execute(_MARK_SWEPT, {"ids": publish_ids})
