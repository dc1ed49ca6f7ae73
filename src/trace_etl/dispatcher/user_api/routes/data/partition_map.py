"""The partition map of a dataset."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from trace_etl.api.body import Block, Name
from trace_etl.api.user.data.partition_map import MAX_BUCKETS, MAX_LISTED, PartitionMap
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.model.errors import Fault, Invalid
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.partitions import partition_map
from trace_etl.state.partitions.partition_map import Window

router = APIRouter(prefix="/v1", tags=["datasets"])


@router.get("/datasets/{name}/map")
async def get_partition_map(
    name: Name,
    user: CallerDep,
    ctx: ContextDep,
    start: Annotated[Block | None, Query(description="Default: the first block.")] = None,
    end: Annotated[Block | None, Query(description="Default: the last block.")] = None,
    buckets: Annotated[int, Query(ge=1, le=MAX_BUCKETS)] = 600,
    dataset_version: Annotated[
        UUID | None, Query(description="A generation. Default: the one that readers see.")
    ] = None,
) -> PartitionMap:
    """Count the partitions of a dataset by block, with unfinished tasks and invalidations.

    A window with at most 2,000 partitions lists them one by one.
    """
    async with snapshot(ctx.pool) as conn:
        found = await partition_map.find_generation(conn, user.org_id, name, dataset_version)
        version = found.dataset_version
        first, last, without_range = await partition_map.get_extent(conn, version)
        hot = None
        if found.state == "current":
            hot = await partition_map.get_hot(conn, found.dataset_uuid, last)
        if hot is not None:
            first, last = hot.start if first is None else first, hot.end
        window = _choose_window(start, end, buckets, first, last)
        partitions, blocks = await partition_map.count_partitions(conn, version, window)
        listed = None
        if sum(partitions) <= MAX_LISTED:
            listed = await partition_map.list_window(conn, version, window)
        stale = await partition_map.count_stale(conn, version, window)
        versions = [version] if hot is None else [version, hot.dataset_version]
        invalidations = await partition_map.list_invalidations(conn, versions, window)
        tasks = await partition_map.count_tasks(conn, found.dataset_uuid, window)
    return PartitionMap(
        dataset=name,
        dataset_version=version,
        state=found.state,
        first=first,
        last=last,
        start=window.start,
        end=window.end,
        buckets=window.buckets,
        partitions=partitions,
        blocks=blocks,
        stale=stale,
        hot=hot,
        tasks=tasks,
        invalidations=invalidations,
        listed=listed,
        without_range=without_range,
    )


def _choose_window(
    start: int | None, end: int | None, buckets: int, first: int | None, last: int | None
) -> Window:
    start = start if start is not None else first or 0
    end = end if end is not None else max(last or 0, start)
    if end < start:
        raise Invalid([Fault("end", f"{end} is before `start` ({start}); exchange them")])
    return Window(start, end, min(buckets, end - start + 1))
