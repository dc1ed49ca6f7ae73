"""What an attempt reports of its outputs, checked against its token."""

from collections.abc import Sequence
from uuid import UUID

from trace_etl.api.task import lifecycle as wire
from trace_etl.dispatcher.task_api.permissions import Grant
from trace_etl.dispatcher.task_api.tokens import Capability
from trace_etl.model.errors import Fault, Forbidden, Invalid
from trace_etl.model.scope import Range
from trace_etl.model.storage import BUFFERS
from trace_etl.state.catalog import datasets
from trace_etl.state.db.pool import Conn
from trace_etl.state.partitions.invalidations import NewInvalidation
from trace_etl.state.tasks.completions import NewEvent


def granted(caller: Capability, dataset_uuid: UUID, version: UUID | None) -> Grant:
    """The output that a token opens. Raises Forbidden."""
    grant = caller.outputs.get(dataset_uuid)
    if grant is None:
        raise Forbidden(f"dataset {dataset_uuid} is not an output of this task")
    if version is not None and version != grant.dataset_version:
        raise Forbidden(f"the token is for another version of dataset {dataset_uuid}")
    return grant


def announced(caller: Capability, dataset_uuid: UUID, version: UUID | None) -> Grant:
    """The output that its writer itself may say has changed. Raises Forbidden.

    Of a buffered one only the sink knows how far it has got: one false cursor, and every reader
    skips what comes after it.
    """
    grant = granted(caller, dataset_uuid, version)
    if grant.storage_ref["prefix"].startswith(BUFFERS):
        raise Forbidden(
            f"dataset {dataset_uuid} is buffered: publish batches, and the sink tells its readers"
        )
    return grant


def new_event(event: wire.Event, caller: Capability, known: dict[str, UUID]) -> NewEvent:
    """An event about one of the caller's outputs. Raises Forbidden."""
    dataset_uuid = event.dataset_uuid or known[event.dataset or ""]
    grant = announced(caller, dataset_uuid, event.dataset_version)
    return NewEvent(
        dataset_uuid=dataset_uuid,
        # Not named: the one this attempt writes. After a redeploy that is not the current one any
        # more, and nobody may say of a generation that it changed without having written it.
        dataset_version=grant.dataset_version,
        scope_key=event.scope_key,
        partition_key=event.partition_key,
        range_start=event.start,
        range_end=event.end,
        cursor_value=event.cursor,
    )


def new_invalidation(
    item: wire.Invalidation, caller: Capability, known: dict[str, UUID]
) -> NewInvalidation:
    """An invalidation of the caller's output, or of what it checks. Raises Forbidden."""
    dataset_uuid = item.dataset_uuid or known[item.dataset or ""]
    grant = caller.doubted.get(dataset_uuid)
    is_doubt = grant is not None and item.dataset_version in (None, grant.dataset_version)
    if grant is None or not is_doubt:
        grant = granted(caller, dataset_uuid, item.dataset_version)
    span = invalid_span(item.partition_key, item.start, item.end)
    return NewInvalidation(
        dataset_uuid=dataset_uuid,
        dataset_version=grant.dataset_version,
        kind=item.kind,
        partition_key=item.partition_key,
        range_start=span.start if span else None,
        range_end=span.end if span else None,
        filter=item.filter,
        reason=item.reason,
        once_key=item.key,
        is_doubt=is_doubt,
    )


def invalid_span(partition_key: str | None, start: int | None, end: int | None) -> Range | None:
    """The blocks of an invalid scope; those of a partition are in its key."""
    if start is not None and end is not None:
        return Range(start, end)
    try:
        return Range.parse(partition_key or "")
    except Invalid:
        return None


def named(items: Sequence[wire.Event | wire.Invalidation], field: str) -> dict[str, str]:
    """The published names that items use, each with the field to blame for it."""
    return {item.dataset: f"{field}.{n}.dataset" for n, item in enumerate(items) if item.dataset}


async def resolve(conn: Conn, org_id: UUID, names: dict[str, str]) -> dict[str, UUID]:
    """Datasets by published name; the values say which field to blame. Raises Invalid."""
    found = {name: await datasets.uuid_of(conn, org_id, name) for name in sorted(names)}
    unknown = [name for name, dataset_uuid in found.items() if dataset_uuid is None]
    if unknown:
        raise Invalid([Fault(names[n], f"no published dataset {n!r}") for n in unknown])
    return {name: dataset_uuid for name, dataset_uuid in found.items() if dataset_uuid}
