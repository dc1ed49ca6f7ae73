"""Check the publications of a completion: their prefixes, files and partitions."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace

from trace_etl.api.task import lifecycle as bodies
from trace_etl.api.task.payload import Scope
from trace_etl.api.task.verification import VerifiedRange
from trace_etl.dispatcher.task_api.authorization import output_authorization
from trace_etl.dispatcher.task_api.authorization.tokens import Capability
from trace_etl.model.errors import Fault, Forbidden, Invalid, OutputNotReady, Unavailable
from trace_etl.model.storage import StorageRef
from trace_etl.objects.errors import FalseMarker, StorageError
from trace_etl.objects.markers import verify_output
from trace_etl.objects.store import ObjectStore
from trace_etl.state.partitions.new_partition import NewPartition
from trace_etl.state.tasks.completions import NewEvent


async def verify(
    store: ObjectStore, items: Sequence[bodies.Published], caller: Capability
) -> list[NewPartition]:
    """Verify publications concurrently, in threads. Call it before the transaction.

    Raises Forbidden, OutputNotReady, Unavailable, or Invalid that names the publication.
    """
    checks = [asyncio.to_thread(_verify, store, n, item, caller) for n, item in enumerate(items)]
    return list(await asyncio.gather(*checks))


def _verify(
    store: ObjectStore, position: int, item: bodies.Published, caller: Capability
) -> NewPartition:
    grant = output_authorization.require_announceable(
        caller, item.dataset_uuid, item.dataset_version
    )
    field, own = f"datasets_published.{position}", item.storage_ref.ref()
    ref = StorageRef(**grant.storage_ref) if grant.prefix else None
    if ref is None or replace(own, glob=ref.glob) != ref:
        raise Forbidden(
            f"the token does not let this attempt publish {own.url}; publish its own prefix"
        )
    partition = item.partition(Scope(**caller.scope) if caller.scope else None)
    if partition is None:
        raise OutputNotReady("the token of an older release has no scope; run the attempt again")
    key, span = partition
    if span is not None and span.end < span.start:
        raise Invalid([Fault(field, f"the task's scope has no blocks: {key}; publish nothing")])
    try:
        marker = verify_output(store, ref)
    except FalseMarker as error:
        raise Invalid([Fault(f"{field}.storage_ref", str(error))]) from error
    except StorageError as error:
        raise Unavailable(f"cannot verify {field}: {error}") from error
    if marker.verified and (span is None or _get_range(marker.verified) != (span.start, span.end)):
        raise Invalid(
            [Fault(field, f"blocks {_get_range(marker.verified)} were verified, not {key}")]
        )
    return NewPartition(
        dataset_uuid=item.dataset_uuid,
        dataset_version=item.dataset_version,
        partition_key=key,
        range_start=span.start if span else None,
        range_end=span.end if span else None,
        storage_ref=asdict(ref),
        row_count=marker.rows,
        byte_count=marker.bytes,
        object_count=len(marker.files) + 1,
        columns=marker.schema_,
        config_hash=item.config_hash,
        verified=marker.verified.model_dump() if marker.verified else None,
        content_hash=marker.content_hash,
        row_sum=marker.row_sum,
        row_sums=None
        if marker.row_sums is None
        else [(one.columns, one.row_sum) for one in marker.row_sums],
        files=[file.model_dump() for file in marker.files],
    )


def _get_range(verified: VerifiedRange) -> tuple[int, int]:
    return verified.start, verified.end


def missing_events(published: Sequence[NewPartition], events: Sequence[NewEvent]) -> list[NewEvent]:
    """Build the missing events: for each published partition whose dataset has no event."""
    announced = {event.dataset_uuid for event in events}
    return [
        NewEvent(
            dataset_uuid=partition.dataset_uuid,
            dataset_version=partition.dataset_version,
            scope_key=f"p:{partition.partition_key}",
            partition_key=partition.partition_key,
            range_start=partition.range_start,
            range_end=partition.range_end,
            cursor_value=None,
        )
        for partition in published
        if partition.dataset_uuid not in announced
    ]
