"""Datasets."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from trace_etl.dispatcher.routes.context import CallerDep, ContextDep
from trace_etl.dispatcher.routes.pages import PageDep
from trace_etl.model.scope import Range
from trace_etl.plan.ranges import gaps
from trace_etl.state import datasets, partitions
from trace_etl.state.datasets import DatasetFilter
from trace_etl.state.partitions import Partition
from trace_etl.wire import user as wire

router = APIRouter(prefix="/v1", tags=["datasets"])


@router.get("/datasets")
async def list_datasets(
    user: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    name: wire.Name | None = None,
    dag: wire.Name | None = None,
    job: wire.Name | None = None,
    published: bool | None = None,
) -> wire.DatasetList:
    """The datasets of the deployed DAGs: published ones first, by name, then the others."""
    which = DatasetFilter(name, dag, job, published)
    after = page.after(int, str, str, str, str)
    async with ctx.pool.connection() as conn:
        found = await datasets.listing(conn, user.org_id, which, after=after, limit=page.fetch)
    items, following = page.cut(found, lambda d: d.position)
    return wire.DatasetList(
        items=[wire.DatasetItem.model_validate(asdict(d)) for d in items], next=following
    )


@router.get("/datasets/{name}")
async def get_dataset(name: wire.Name, user: CallerDep, ctx: ContextDep) -> wire.DatasetDetail:
    """One published dataset, with its partitions and the gaps between them."""
    async with ctx.pool.connection() as conn:
        view = await datasets.get(conn, user.org_id, name)
        found = await partitions.committed(conn, view.dataset_version)
    return wire.DatasetDetail.model_validate(
        {
            **asdict(view),
            "columns": found[-1].columns if found else [],
            "partition_list": [_partition(p) for p in found],
            "gaps": [(hole.start, hole.end) for hole in gaps(_ranges(found))],
        }
    )


def _partition(p: Partition) -> dict[str, Any]:
    return {**asdict(p), "start": p.range_start, "end": p.range_end}


def _ranges(found: list[Partition]) -> list[Range]:
    return [
        Range(p.range_start, p.range_end)
        for p in found
        if p.range_start is not None and p.range_end is not None
    ]
