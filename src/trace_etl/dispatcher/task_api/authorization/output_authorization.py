"""Check what an attempt reports about its outputs against its token."""

from collections.abc import Sequence
from uuid import UUID

from trace_etl.api.task import lifecycle as bodies
from trace_etl.dispatcher.task_api.authorization.permissions import DatasetGrant
from trace_etl.dispatcher.task_api.authorization.tokens import Capability
from trace_etl.model.errors import Fault, Forbidden, Invalid
from trace_etl.model.scope import Range
from trace_etl.state.catalog import datasets
from trace_etl.state.db.pool import Conn
from trace_etl.state.invalidations.invalidations import NewInvalidation
from trace_etl.state.tasks.completions import NewEvent


def require_output(caller: Capability, dataset_uuid: UUID, version: UUID | None) -> DatasetGrant:
    """Return the token's grant for an output. Raises Forbidden."""
    grant = caller.outputs.get(dataset_uuid)
    if grant is None:
        raise Forbidden(
            f"dataset {dataset_uuid} is not an output of this task; name one of its outputs"
        )
    if version is not None and version != grant.dataset_version:
        raise Forbidden(
            f"the token is for another version of dataset {dataset_uuid}; name the version of the payload"
        )
    return grant


def require_announceable(
    caller: Capability, dataset_uuid: UUID, version: UUID | None
) -> DatasetGrant:
    """Return the grant for an output whose changes the task itself may announce. Raises Forbidden.

    Only the sink may announce a buffered dataset: a wrong cursor would make readers skip rows.
    """
    grant = require_output(caller, dataset_uuid, version)
    if grant.is_buffered:
        raise Forbidden(
            f"dataset {dataset_uuid} is buffered: publish batches; the sink announces them"
        )
    return grant


def new_event(event: bodies.Event, caller: Capability, uuids: dict[str, UUID]) -> NewEvent:
    """Build an event about one of the caller's outputs. Raises Forbidden."""
    dataset_uuid = event.dataset_uuid or uuids[event.dataset or ""]
    grant = require_announceable(caller, dataset_uuid, event.dataset_version)
    return NewEvent(
        dataset_uuid=dataset_uuid,
        # The version that this attempt writes, even if a redeploy has made another one current: a task
        # may only announce a version that it has written.
        dataset_version=grant.dataset_version,
        scope_key=event.scope_key,
        partition_key=event.partition_key,
        range_start=event.blocks.start if event.blocks else None,
        range_end=event.blocks.end if event.blocks else None,
        cursor_value=event.cursor,
    )


def new_invalidation(
    item: bodies.Invalidation, caller: Capability, uuids: dict[str, UUID]
) -> NewInvalidation:
    """Build an invalidation of the caller's output or of an input it checks. Raises Forbidden."""
    dataset_uuid = item.dataset_uuid or uuids[item.dataset or ""]
    grant = caller.checked_inputs.get(dataset_uuid)
    is_reported_defect = grant is not None and item.dataset_version in (None, grant.dataset_version)
    if grant is None or not is_reported_defect:
        grant = require_output(caller, dataset_uuid, item.dataset_version)
    span = parse_invalid_range(item.partition_key, item.start, item.end)
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
        is_reported_defect=is_reported_defect,
        is_reorganisation=item.is_reorganisation and not is_reported_defect,
    )


def parse_invalid_range(
    partition_key: str | None, start: int | None, end: int | None
) -> Range | None:
    """Return the block range of an invalid scope, from its bounds or from its partition key."""
    if start is not None and end is not None:
        return Range(start, end)
    return Range.from_key(partition_key or "")


def list_names(items: Sequence[bodies.Event | bodies.Invalidation], field: str) -> dict[str, str]:
    """Map each published name that items use to the field that holds it, for error messages."""
    return {item.dataset: f"{field}.{n}.dataset" for n, item in enumerate(items) if item.dataset}


async def resolve_names(conn: Conn, org_id: UUID, names: dict[str, str]) -> dict[str, UUID]:
    """Look up datasets by published name. `names` maps each name to its field. Raises Invalid."""
    uuids = {name: await datasets.find_uuid(conn, org_id, name) for name in sorted(names)}
    unknown = [name for name, dataset_uuid in uuids.items() if dataset_uuid is None]
    if unknown:
        advice = "; `trace datasets` lists them"
        raise Invalid(
            [Fault(names[n], f"unknown published dataset {n!r}{advice}") for n in unknown]
        )
    return {name: dataset_uuid for name, dataset_uuid in uuids.items() if dataset_uuid}
