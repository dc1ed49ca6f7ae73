"""Lineage."""

from dataclasses import asdict

from fastapi import APIRouter

from trace_etl.api.body import Key, Name
from trace_etl.api.user import lineage as wire
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.state.catalog import datasets
from trace_etl.state.partitions import lineage

router = APIRouter(prefix="/v1", tags=["datasets"])


@router.get("/datasets/{name}/lineage")
async def dataset_lineage(name: Name, user: CallerDep, ctx: ContextDep) -> wire.DatasetLineage:
    """The datasets that a published one is made from, and those made from it."""
    async with ctx.pool.connection() as conn:
        view = await datasets.get(conn, user.org_id, name)
        up, down = await lineage.of_dataset(conn, view.dataset_uuid)
    return wire.DatasetLineage(
        dataset=name,
        producers=view.producers,
        dataset_uuid=view.dataset_uuid,
        dataset_version=view.dataset_version,
        up=[wire.LineageDataset.model_validate(asdict(n)) for n in up],
        down=[wire.LineageDataset.model_validate(asdict(n)) for n in down],
    )


@router.get("/datasets/{name}/lineage/{partition_key:path}")  # keys may have slashes in them
async def partition_lineage(
    name: Name, partition_key: Key, user: CallerDep, ctx: ContextDep
) -> wire.PartitionLineage:
    """Which attempt made a partition, from which partitions, and what was made from it."""
    async with ctx.pool.connection() as conn:
        view = await datasets.get(conn, user.org_id, name)
        made = await lineage.maker(conn, view.dataset_version, partition_key)
        up, down = await lineage.of_partition(conn, view.dataset_version, partition_key)
    return wire.PartitionLineage(
        dataset=name,
        dataset_uuid=view.dataset_uuid,
        dataset_version=view.dataset_version,
        partition_key=partition_key,
        task_id=made.task_id,
        attempt=made.attempt,
        up=[wire.LineagePartition.model_validate(asdict(link)) for link in up],
        down=[wire.LineagePartition.model_validate(asdict(link)) for link in down],
    )
