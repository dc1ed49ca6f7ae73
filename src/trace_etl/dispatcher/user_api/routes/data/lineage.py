"""Lineage of datasets and partitions."""

from fastapi import APIRouter

from trace_etl.api.body import Key, Name
from trace_etl.api.user.data.lineage import DatasetLineage, PartitionLineage
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.state.catalog import datasets
from trace_etl.state.partitions import lineage

router = APIRouter(prefix="/v1", tags=["datasets"])


@router.get("/datasets/{name}/lineage")
async def dataset_lineage(name: Name, user: CallerDep, ctx: ContextDep) -> DatasetLineage:
    """List the datasets upstream and downstream of a published dataset."""
    async with ctx.pool.connection() as conn:
        dataset = await datasets.get_dataset(conn, user.org_id, name)
        up, down = await lineage.get_dataset_lineage(conn, dataset.dataset_uuid)
    return DatasetLineage(
        dataset=name,
        producers=dataset.producers,
        dataset_uuid=dataset.dataset_uuid,
        dataset_version=dataset.dataset_version,
        up=up,
        down=down,
    )


@router.get("/datasets/{name}/lineage/{partition_key:path}")  # a key may contain slashes
async def partition_lineage(
    name: Name, partition_key: Key, user: CallerDep, ctx: ContextDep
) -> PartitionLineage:
    """Show the attempt that wrote a partition, and its upstream and downstream partitions."""
    async with ctx.pool.connection() as conn:
        dataset = await datasets.get_dataset(conn, user.org_id, name)
        version = dataset.dataset_version
        task_id, attempt = await lineage.get_writer(conn, version, partition_key)
        up, down = await lineage.get_partition_lineage(conn, version, partition_key)
    return PartitionLineage(
        dataset=name,
        dataset_uuid=dataset.dataset_uuid,
        dataset_version=version,
        partition_key=partition_key,
        task_id=task_id,
        attempt=attempt,
        up=up,
        down=down,
    )
