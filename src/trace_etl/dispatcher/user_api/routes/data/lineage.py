"""Lineage of datasets and partitions."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from trace_etl.api.body import Key, Name
from trace_etl.api.user.data.lineage import DatasetLineage, PartitionLineage
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.state.catalog import datasets
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.partitions import lineage, partition_map

router = APIRouter(prefix="/v1", tags=["datasets"])


@router.get("/datasets/{name}/lineage")
async def dataset_lineage(
    name: Name,
    user: CallerDep,
    ctx: ContextDep,
    dataset_version: Annotated[
        UUID | None,
        Query(description="As of the definitions that made this generation. Default: as deployed."),
    ] = None,
) -> DatasetLineage:
    """List the datasets upstream and downstream of a published dataset, now or of a generation."""
    async with snapshot(ctx.pool) as conn:
        dataset = await datasets.get_dataset(conn, user.org_id, name)
        if dataset_version is None:
            up, down = await lineage.get_dataset_lineage(conn, dataset.dataset_uuid)
        else:
            await partition_map.find_generation(conn, user.org_id, name, dataset_version)
            up, down = await lineage.get_generation_lineage(conn, dataset_version)
        shown = [dataset.dataset_uuid, *(found.dataset_uuid for found in (*up, *down))]
        links = await lineage.list_links(conn, shown, all_revisions=dataset_version is not None)
    return DatasetLineage(
        dataset=name,
        producers=dataset.producers,
        dataset_uuid=dataset.dataset_uuid,
        dataset_version=dataset_version or dataset.dataset_version,
        up=up,
        down=down,
        links=links,
    )


@router.get("/datasets/{name}/lineage/{partition_key:path}")  # a key may contain slashes
async def partition_lineage(
    name: Name,
    partition_key: Key,
    user: CallerDep,
    ctx: ContextDep,
    dataset_version: Annotated[
        UUID | None, Query(description="A generation. Default: the one that readers see.")
    ] = None,
) -> PartitionLineage:
    """Show the attempt that wrote a partition, and its upstream and downstream partitions."""
    async with ctx.pool.connection() as conn:
        found = await partition_map.find_generation(conn, user.org_id, name, dataset_version)
        version = found.dataset_version
        task_id, attempt = await lineage.get_writer(conn, version, partition_key)
        up, down = await lineage.get_partition_lineage(conn, version, partition_key)
    return PartitionLineage(
        dataset=name,
        dataset_uuid=found.dataset_uuid,
        dataset_version=version,
        partition_key=partition_key,
        task_id=task_id,
        attempt=attempt,
        up=up,
        down=down,
    )
