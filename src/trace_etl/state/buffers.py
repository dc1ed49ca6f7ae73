"""Publishes of batches for buffered datasets."""

from dataclasses import asdict, dataclass
from uuid import UUID

from trace_etl.model.task import Fence
from trace_etl.state.pool import Conn


@dataclass(frozen=True)
class NewBatch:
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
    RETURNING publish_id
), asked AS (
    INSERT INTO outbox (kind, target, subject, body)
    SELECT 'buffer_message', 'buffer', publish_id, jsonb_build_object(
               'kind', 'buffer_batch', 'org_id', %(org_id)s::text,
               'dataset_uuid', %(dataset_uuid)s::text, 'dataset_version', %(dataset_version)s::text,
               'batch_uri', %(batch_uri)s::text, 'record_count', %(record_count)s::bigint,
               'producer', jsonb_build_object('task_id', %(task_id)s::text,
                                              'attempt', %(attempt)s::int))
      FROM batch
)
SELECT publish_id FROM batch
"""
# A statement of its own: what a rival committed while the first one waited is visible only now.
_KNOWN = """
SELECT b.publish_id FROM buffer_publishes b JOIN tasks t USING (task_id)
 WHERE b.task_id = %(task_id)s AND b.attempt = %(attempt)s
   AND b.dataset_uuid = %(dataset_uuid)s AND b.batch_uri = %(batch_uri)s
   AND t.attempt = %(attempt)s AND t.lease_token = %(lease_token)s AND t.status = 'Running'
"""


async def publish(conn: Conn, fence: Fence, batch: NewBatch) -> UUID | None:
    """Record a batch and ask for its message, once. None: the fence is stale."""
    values = {**asdict(fence), **asdict(batch)}
    for query in (_PUBLISH, _KNOWN):
        row = await (await conn.execute(query, values)).fetchone()
        if row is not None:
            return row[0]
    return None
