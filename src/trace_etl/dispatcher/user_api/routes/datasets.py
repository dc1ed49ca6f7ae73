"""Datasets."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from trace_etl.api.body import Name
from trace_etl.api.user import datasets as wire
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import PageDep
from trace_etl.state.catalog import datasets
from trace_etl.state.catalog.datasets import DatasetFilter
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.partitions import partition_queries
from trace_etl.state.partitions.partition_queries import Partition
from trace_etl.state.routing import cursors

router = APIRouter(prefix="/v1", tags=["datasets"])


@router.get("/datasets")
async def list_datasets(
    user: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    name: Name | None = None,
    dag: Name | None = None,
    job: Name | None = None,
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
async def get_dataset(
    name: Name, user: CallerDep, ctx: ContextDep, page: PageDep
) -> wire.DatasetDetail:
    """One published dataset: a page of its partitions, the gaps between them, its generations."""
    async with snapshot(ctx.pool) as conn:
        view = await datasets.get(conn, user.org_id, name)
        version = view.dataset_version
        found = await partition_queries.page(
            conn, version, after=page.after(int, str), limit=page.fetch
        )
        gaps = await partition_queries.gaps(conn, version)
        told = await datasets.told_columns(conn, version)
        generations = await partition_queries.generations(conn, view.dataset_uuid)
        consumers = await cursors.of_dataset(conn, view.dataset_uuid, version)
    items, following = page.cut(found, _position)
    return wire.DatasetDetail.model_validate(
        {
            **asdict(view),
            "columns": items[-1].columns if items else told,
            "partition_list": [_partition(p) for p in items],
            "next": following,
            "gaps": gaps,
            "generations": [asdict(g) for g in generations],
            "consumers": [asdict(c) for c in consumers],
        }
    )


def _position(p: Partition) -> tuple[int, str]:
    return -1 if p.range_start is None else p.range_start, p.partition_key


def _partition(p: Partition) -> dict[str, Any]:
    return {**asdict(p), "start": p.range_start, "end": p.range_end}
