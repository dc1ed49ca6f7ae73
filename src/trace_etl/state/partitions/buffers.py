"""Batches of buffered datasets: tasks publish them, the sink writes their rows."""

from dataclasses import asdict, dataclass
from datetime import timedelta
from uuid import UUID

from trace_etl.api.task.buffers import BufferBatch
from trace_etl.api.user.data.batches import BatchItem
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


_BATCH = """
SELECT b.publish_id, b.publish_no, b.org_id, b.task_id, b.attempt, b.dataset_uuid,
       b.dataset_version, b.batch_uri, b.content_type, b.record_count, b.batch_size_bytes,
       v.columns, coalesce(v.unique_key, '{}') AS unique_key
  FROM buffer_publishes b JOIN dataset_versions v USING (dataset_version)
 WHERE b.publish_id = %(publish_id)s
"""


async def get_batch(conn: Conn, publish_id: UUID) -> BufferBatch:
    """Read a batch and the columns of its dataset. Raises NotFound."""
    batch = await fetch_one(conn, BufferBatch, _BATCH, {"publish_id": publish_id})
    if batch is None:
        raise NotFound(f"no batch {publish_id}; `trace batches` lists them")
    return batch


# The task that published the batch is the producer of the event.
_MARK_WRITTEN = """
WITH batch AS (
    UPDATE buffer_publishes
       SET sunk_at = now(), row_count = %(row_count)s, cursor_value = %(cursor)s,
           failed_at = NULL, error_code = NULL, error_message = NULL
     WHERE publish_id = %(publish_id)s AND sunk_at IS NULL
    RETURNING org_id, dataset_uuid, dataset_version, cursor_value, task_id, attempt
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


async def mark_written(conn: Conn, publish_id: UUID, *, row_count: int, cursor: int | None) -> None:
    """Record that a batch is in the table, and emit the event for its consumers once."""
    values = {"publish_id": publish_id, "row_count": row_count, "cursor": cursor}
    await conn.execute(_MARK_WRITTEN, values)


_MARK_FAILED = """
UPDATE buffer_publishes
   SET failed_at = now(), error_code = %(code)s, error_message = %(message)s
 WHERE publish_id = %(publish_id)s AND sunk_at IS NULL
"""


async def mark_failed(conn: Conn, publish_id: UUID, *, code: str, message: str | None) -> None:
    """Record that a batch cannot be written, with the reason."""
    await conn.execute(_MARK_FAILED, {"publish_id": publish_id, "code": code, "message": message})


# --- calls of the user API and of background loops --------------------------------------------


class BatchRow(BatchItem):
    """A batch as the API returns it, with its position in the list."""

    publish_no: int


_LIST = """
SELECT * FROM (
    SELECT b.publish_no, b.publish_id, coalesce(g.name, '') AS dag, coalesce(j.name, '') AS job,
           b.task_id, b.attempt, b.batch_uri, b.record_count,
           CASE WHEN b.sunk_at IS NOT NULL THEN 'written' WHEN b.failed_at IS NOT NULL THEN 'failed'
                ELSE 'waiting' END AS state,
           b.row_count, b.cursor_value AS cursor, b.accepted_at,
           coalesce(b.sunk_at, b.failed_at) AS ended_at, b.error_code, b.error_message
      FROM buffer_publishes b LEFT JOIN tasks t USING (task_id)
      LEFT JOIN jobs j ON j.job_id = t.job_id LEFT JOIN dags g ON g.dag_id = j.dag_id
     WHERE b.org_id = %(org_id)s AND b.dataset_uuid = %(dataset_uuid)s
) b
 WHERE (%(state)s::text IS NULL OR b.state = %(state)s)
   AND (%(before)s::bigint IS NULL OR b.publish_no < %(before)s)
 ORDER BY b.publish_no DESC LIMIT %(limit)s
"""


async def list_batches(
    conn: Conn,
    org_id: UUID,
    dataset_uuid: UUID,
    *,
    state: str | None,
    before: int | None,
    limit: int,
) -> list[BatchRow]:
    """List one page of the batches of a dataset, newest first."""
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
_FIND_BATCH = """
SELECT 1 FROM buffer_publishes WHERE org_id = %(org_id)s AND publish_id = %(publish_id)s
"""


async def redeliver_batch(conn: Conn, org_id: UUID, publish_id: UUID) -> None:
    """Enqueue the message of an unwritten batch again. Raises NotFound, Conflict."""
    values = {"org_id": org_id, "publish_id": publish_id}
    if (await conn.execute(_REDELIVER, values)).rowcount:
        return
    if await (await conn.execute(_FIND_BATCH, values)).fetchone() is None:
        raise NotFound(f"no batch {publish_id}; `trace batches` lists them")
    raise Conflict(f"batch {publish_id} is already written")


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
