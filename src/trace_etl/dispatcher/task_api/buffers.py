"""What running attempts send beside their result: batches of buffered datasets, and output."""

from dataclasses import dataclass
from uuid import UUID

from trace_etl.api.task import lifecycle as bodies
from trace_etl.api.task.buffers import (
    BufferBatches,
    BufferComplete,
    BufferCompleteAccepted,
    BufferFetch,
)
from trace_etl.dispatcher.task_api.authorization import output_authorization
from trace_etl.dispatcher.task_api.authorization.tokens import Capability, DatasetGrant
from trace_etl.dispatcher.task_api.lifecycle import explain_refusal
from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.model.errors import Fault, Forbidden, Invalid, NotBuffered
from trace_etl.state.db.pool import Pool, single_statements, transaction
from trace_etl.state.partitions import buffers
from trace_etl.state.tasks import attempt_logs


@dataclass(frozen=True)
class Buffers:
    pool: Pool
    wake: WakeEvents

    async def publish(
        self, body: bodies.BufferPublish, caller: Capability
    ) -> bodies.BufferPublishAccepted:
        """Record a batch for a buffered dataset and enqueue its message, once."""
        caller.require(body.fence())
        dataset_uuid = await self._find_dataset(body, caller)
        grant = output_authorization.require_output(caller, dataset_uuid, body.dataset_version)
        _require_buffered(body, grant)
        _require_attempt_prefix(body.batch_uri, grant)
        batch = buffers.NewBatch(
            org_id=caller.org_id,
            dataset_uuid=dataset_uuid,
            dataset_version=grant.dataset_version,
            batch_uri=body.batch_uri,
            content_type=body.content_type,
            record_count=body.record_count,
            batch_size_bytes=body.batch_size_bytes,
        )
        async with single_statements(self.pool) as conn:
            publish_id = await buffers.publish_batch(conn, body.fence(), batch)
            if publish_id is None:
                raise await explain_refusal(conn, body.fence())
        self.wake.outbox.set()
        return bodies.BufferPublishAccepted(publish_id=publish_id)

    async def _find_dataset(self, body: bodies.BufferPublish, caller: Capability) -> UUID:
        if body.dataset_uuid is not None:
            return body.dataset_uuid
        if body.dedupe_scope is None:
            raise Invalid([Fault("dataset_uuid", "is required and missing")])
        names = {body.dedupe_scope: "dedupe_scope"}
        async with self.pool.connection() as conn:
            return (await output_authorization.resolve_names(conn, caller.org_id, names))[
                body.dedupe_scope
            ]

    async def keep_log(self, body: bodies.LogOutput, caller: Capability) -> bodies.LogAccepted:
        """Keep a part of the output of an attempt."""
        caller.require(body.fence())
        async with transaction(self.pool) as conn:
            if not await attempt_logs.append(conn, body.fence(), body.position, body.text):
                raise await explain_refusal(conn, body.fence())
        return bodies.LogAccepted()

    async def fetch(self, body: BufferFetch) -> BufferBatches:
        """Return batches and the columns their rows must have. Unknown batches are left out."""
        async with self.pool.connection() as conn:
            return BufferBatches(batches=await buffers.list_by_id(conn, body.publish_ids))

    async def complete(self, body: BufferComplete) -> BufferCompleteAccepted:
        """Record that the sink wrote batches and enqueue their events, or record why they failed."""
        # Each result is recorded once, whatever happens to the others: a report may be repeated.
        async with single_statements(self.pool) as conn:
            await buffers.mark_written(conn, [r for r in body.results if r.status == "Completed"])
            await buffers.mark_failed(conn, [r for r in body.results if r.status == "Failed"])
        self.wake.outbox.set()
        return BufferCompleteAccepted()


def _require_buffered(body: bodies.BufferPublish, grant: DatasetGrant) -> None:
    if not grant.is_buffered:
        field = "dataset_uuid" if body.dataset_uuid is not None else "dedupe_scope"
        rule = f"output {grant.output!r} is not a buffered dataset"
        raise NotBuffered([Fault(field, f"{rule}; publish it with `write_mode: buffered`")])


def _require_attempt_prefix(batch_uri: str, grant: DatasetGrant) -> None:
    """Check that the batch lies under this attempt's own prefix. Raises Forbidden."""
    allowed = grant.write_urls
    is_own = any(batch_uri.startswith(prefix) for prefix in allowed)
    if not is_own or {"", ".", ".."} & set(batch_uri.removeprefix("s3://").split("/")):
        raise Forbidden(
            f"batch_uri {batch_uri}: this attempt may publish only under {' or '.join(allowed)}"
        )
