"""Batches of buffered datasets: tasks publish them, the sink writes their rows."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from uuid import UUID

from trace_etl.api.task.buffers import BufferBatch, BufferResult
from trace_etl.api.user.data.batches import BatchDetail
from trace_etl.model.errors import Conflict, NotFound
from trace_etl.model.task import Fence
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all, fetch_one


@dataclass(frozen=True)
class NewBatch:
    """A batch that a task publishes to a buffered dataset."""

    org_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    batch_uri: str
    content_type: str
    record_count: int | None
    batch_size_bytes: int | None


_PUBLISH = """
WITH producer AS (
    SELECT task_id, attempt FROM tasks
     WHERE task_id = %(task_id)s AND attempt = %(attempt)s AND lease_token = %(lease_token)s
       AND status = 'Running'
       FOR UPDATE
), batch AS (
    INSERT INTO buffer_publishes (org_id, task_id, attempt, dataset_uuid, dataset_version,
                                  batch_uri, content_type, record_count, batch_size_bytes)
    SELECT %(org_id)s, task_id, attempt, %(dataset_uuid)s, %(dataset_version)s, %(batch_uri)s,
           %(content_type)s, %(record_count)s, %(batch_size_bytes)s
      FROM producer
    ON CONFLICT ON CONSTRAINT buffer_publishes_once DO NOTHING
    RETURNING buffer_publishes AS row
)
SELECT subject FROM enqueue(ARRAY(SELECT buffer_entry(batch.row) FROM batch))
"""
# A separate statement: it sees a batch that a concurrent call committed while `_PUBLISH` waited for
# the task's row lock.
_FIND_PUBLISHED = """
SELECT b.publish_id FROM buffer_publishes b JOIN tasks t USING (task_id)
 WHERE b.task_id = %(task_id)s AND b.attempt = %(attempt)s
   AND b.dataset_uuid = %(dataset_uuid)s AND b.batch_uri = %(batch_uri)s
   AND t.attempt = %(attempt)s AND t.lease_token = %(lease_token)s AND t.status = 'Running'
"""


async def publish_batch(conn: Conn, fence: Fence, batch: NewBatch) -> UUID | None:
    """Record a batch once, enqueue its message and return its id. None if the fence is stale."""
    values = {**fence._asdict(), **asdict(batch)}
    for query in (_PUBLISH, _FIND_PUBLISHED):
        row = await (await conn.execute(query, values)).fetchone()
        if row is not None:
            return row[0]
    return None


# --- calls of the sink ------------------------------------------------------------------------


_BATCHES = """
SELECT b.publish_id, b.publish_no, b.org_id, b.task_id, b.attempt, b.dataset_uuid,
       b.dataset_version, b.batch_uri, b.content_type, b.record_count, b.batch_size_bytes,
       v.columns, coalesce(v.unique_key, '{}') AS unique_key
  FROM buffer_publishes b JOIN dataset_versions v USING (dataset_version)
 WHERE b.publish_id = ANY(%(publish_ids)s)
"""


async def list_by_id(conn: Conn, publish_ids: Sequence[UUID]) -> list[BufferBatch]:
    """Read batches and the columns of their datasets. Unknown batches are left out."""
    return await fetch_all(conn, BufferBatch, _BATCHES, {"publish_ids": list(publish_ids)})


# The task that published the batch is the producer of the event.
_MARK_WRITTEN = """
WITH batch AS (
    UPDATE buffer_publishes b
       SET sunk_at = now(), row_count = r.row_count, cursor_value = r.cursor_value,
           failed_at = NULL, error_code = NULL, error_message = NULL
      FROM unnest(%(ids)s::uuid[], %(row_counts)s::bigint[], %(cursors)s::bigint[])
           AS r (publish_id, row_count, cursor_value)
     WHERE b.publish_id = r.publish_id AND b.sunk_at IS NULL
    RETURNING b.org_id, b.dataset_uuid, b.dataset_version, b.cursor_value, b.task_id, b.attempt
), event AS (
    INSERT INTO events (org_id, dataset_uuid, dataset_version, scope_key, cursor_value,
                        producer_task_id, attempt)
    SELECT org_id, dataset_uuid, dataset_version, 'c:' || cursor_value, cursor_value, task_id,
           attempt
      FROM batch WHERE cursor_value IS NOT NULL
    ON CONFLICT ON CONSTRAINT events_once DO NOTHING
    RETURNING event_id
)
SELECT outbox_id FROM enqueue(ARRAY(SELECT outbox_entry('route_event', event_id) FROM event))
"""


async def mark_written(conn: Conn, results: Sequence[BufferResult]) -> None:
    """Record that batches are in their tables, and emit the events for their consumers once."""
    if results:
        values = {
            "ids": [result.publish_id for result in results],
            "row_counts": [result.row_count or 0 for result in results],
            "cursors": [result.cursor for result in results],
        }
        await conn.execute(_MARK_WRITTEN, values)


_MARK_FAILED = """
UPDATE buffer_publishes b SET failed_at = now(), error_code = r.code, error_message = r.message
  FROM unnest(%(ids)s::uuid[], %(codes)s::text[], %(messages)s::text[])
       AS r (publish_id, code, message)
 WHERE b.publish_id = r.publish_id AND b.sunk_at IS NULL
"""


async def mark_failed(conn: Conn, results: Sequence[BufferResult]) -> None:
    """Record that batches cannot be written, with the reasons."""
    if results:
        values = {
            "ids": [result.publish_id for result in results],
            "codes": [result.error_code or "failed" for result in results],
            "messages": [result.error_message for result in results],
        }
        await conn.execute(_MARK_FAILED, values)


# --- calls of the user API and of background loops --------------------------------------------


class BatchRow(BatchDetail):
    """A batch as the API returns it, with its position in the list."""

    org_id: UUID
    publish_no: int


_LIST = """
SELECT * FROM batch_details b
 WHERE b.org_id = %(org_id)s
   AND (%(dataset_uuid)s::uuid IS NULL OR b.dataset_uuid = %(dataset_uuid)s)
   AND (%(state)s::text IS NULL OR b.state = %(state)s)
   AND (%(before)s::bigint IS NULL OR b.publish_no < %(before)s)
 ORDER BY b.publish_no DESC LIMIT %(limit)s
"""
_GET = """
SELECT * FROM batch_details WHERE org_id = %(org_id)s AND publish_id = %(publish_id)s
"""


async def get_batch(conn: Conn, org_id: UUID, publish_id: UUID) -> BatchDetail:
    """Read one batch. Raises NotFound."""
    values = {"org_id": org_id, "publish_id": publish_id}
    batch = await fetch_one(conn, BatchRow, _GET, values)
    if batch is None:
        raise NotFound(f"no batch {publish_id}; `trace batches` lists them")
    return batch


async def list_batches(
    conn: Conn,
    org_id: UUID,
    dataset_uuid: UUID | None,
    *,
    state: str | None,
    before: int | None,
    limit: int,
) -> list[BatchRow]:
    """List one page of the batches of a dataset, or of all datasets, newest first."""
    values = {"org_id": org_id, "dataset_uuid": dataset_uuid, "state": state}
    return await fetch_all(conn, BatchRow, _LIST, {**values, "before": before, "limit": limit})


_REDELIVER = """
WITH batch AS (
    UPDATE buffer_publishes
       SET failed_at = NULL, error_code = NULL, error_message = NULL, ask_again_at = DEFAULT
     WHERE org_id = %(org_id)s AND publish_id = %(publish_id)s AND sunk_at IS NULL
    RETURNING buffer_publishes AS row
)
SELECT outbox_id FROM enqueue(ARRAY(SELECT buffer_entry(batch.row) FROM batch))
"""


async def redeliver_batch(conn: Conn, org_id: UUID, publish_id: UUID) -> None:
    """Enqueue the message of an unwritten batch again. Raises NotFound, Conflict."""
    values = {"org_id": org_id, "publish_id": publish_id}
    if (await conn.execute(_REDELIVER, values)).rowcount:
        return
    await get_batch(conn, org_id, publish_id)
    raise Conflict(f"batch {publish_id} is already written; nothing is left to deliver")


_DROP = """
DELETE FROM buffer_publishes
 WHERE org_id = %(org_id)s AND publish_id = %(publish_id)s AND failed_at IS NOT NULL
"""


async def drop_batch(conn: Conn, org_id: UUID, publish_id: UUID) -> None:
    """Forget a failed batch. The storage sweeper deletes its file. Raises NotFound, Conflict."""
    values = {"org_id": org_id, "publish_id": publish_id}
    if (await conn.execute(_DROP, values)).rowcount:
        return
    batch = await get_batch(conn, org_id, publish_id)
    raise Conflict(f"batch {publish_id} is {batch.state}; only a failed batch can be dropped")


# The delay grows with the age of the batch. Otherwise the queue would fill with copies of the same
# messages while the sink is down.
_REDELIVER_OVERDUE = """
WITH batch AS (
    UPDATE buffer_publishes
       SET ask_again_at = now() + least(greatest(now() - accepted_at, interval '10 minutes'),
                                        interval '6 hours')
     WHERE publish_id IN (
               SELECT publish_id FROM buffer_publishes
                WHERE ask_again_at < now() AND sunk_at IS NULL AND failed_at IS NULL
                ORDER BY ask_again_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
    RETURNING buffer_publishes AS row
)
SELECT outbox_id FROM enqueue(ARRAY(SELECT buffer_entry(batch.row) FROM batch))
"""


async def redeliver_overdue(conn: Conn, *, limit: int) -> int:
    """Send the messages of batches that wait too long again. Returns the number of batches."""
    return (await conn.execute(_REDELIVER_OVERDUE, {"limit": limit})).rowcount


_DELETE_WRITTEN = """
DELETE FROM buffer_publishes WHERE publish_id IN (
    SELECT publish_id FROM buffer_publishes
     WHERE sunk_at < now() - %(older_than)s AND swept_at IS NOT NULL
     ORDER BY sunk_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
"""


async def delete_written(conn: Conn, *, older_than: timedelta, limit: int) -> int:
    """Delete the records of batches written before the retention.

    Failed batches stay, and batches whose artifact the storage sweeper has not deleted yet.
    """
    return (
        await conn.execute(_DELETE_WRITTEN, {"older_than": older_than, "limit": limit})
    ).rowcount
