"""Datasets."""

import asyncio
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query

from trace_etl.api.body import Name
from trace_etl.api.proof.certificates import CertificateList, StoredCertificate
from trace_etl.api.proof.manifest import SignedManifest
from trace_etl.api.task.lifecycle import Jwks
from trace_etl.api.user.data.datasets import (
    DatasetDetail,
    DatasetItem,
    DatasetList,
    DatasetOutline,
    PartitionItem,
)
from trace_etl.dispatcher.user_api.column_comments import describe_columns
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.listing import ListingDep
from trace_etl.dispatcher.user_api.manifests import (
    MAX_PARTITIONS,
    require_signer,
    sign_manifest,
)
from trace_etl.dispatcher.user_api.pages import PageDep
from trace_etl.model.errors import Fault, Invalid
from trace_etl.model.scope import Range
from trace_etl.state.catalog import datasets
from trace_etl.state.catalog.datasets import DatasetFilter
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.partitions import certificates, partition_map, partition_queries
from trace_etl.state.routing import cursors

router = APIRouter(prefix="/v1", tags=["datasets"])
BlocksParameter = Annotated[
    str | None,
    Query(alias="range", max_length=64, description="Only partitions with blocks of this range."),
]


@router.get("/datasets")
async def list_datasets(
    listing: ListingDep, filters: Annotated[DatasetFilter, Depends()]
) -> DatasetList:
    """List the datasets of the deployed DAGs: published ones first, by name."""
    rows = await listing.fetch(datasets.list_datasets, filters, int, str, str, str, str)
    return listing.reply(DatasetList, rows, _make_dataset_key)


@router.get("/datasets/{name}")
async def get_dataset(
    name: Name,
    user: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    dataset_version: Annotated[
        UUID | None,
        Query(description="Generation of the partitions and gaps. Default: the one readers see."),
    ] = None,
) -> DatasetDetail:
    """Show one published dataset: its generations, gaps, consumers and a page of its partitions."""
    after = page.after(int, str)
    async with snapshot(ctx.pool) as conn:
        dataset = await datasets.get_dataset(conn, user.org_id, name)
        shown = await partition_map.find_generation(conn, user.org_id, name, dataset_version)
        version = shown.dataset_version
        rows = await partition_queries.list_partitions(conn, version, after=after, limit=page.fetch)
        gaps = await partition_queries.list_gaps(conn, version)
        planned = await datasets.get_planned_columns(conn, version)
        generations = await partition_queries.list_generations(conn, dataset.dataset_uuid)
        description = await datasets.get_description(conn, dataset.dataset_uuid)
        consumers = await cursors.list_consumers(conn, dataset.dataset_uuid, version)
    partitions, following = page.cut(rows, _make_partition_key)
    return DatasetDetail(
        **dict(dataset),
        description=description.description,
        columns=describe_columns(partitions[-1].columns if partitions else planned, description),
        partition_list=list(partitions),
        next=following,
        gaps=gaps,
        generations=generations,
        consumers=consumers,
    )


@router.get("/datasets/{name}/outline")
async def get_outline(name: Name, user: CallerDep, ctx: ContextDep) -> DatasetOutline:
    """Show what a published dataset is, without counting its partitions."""
    async with snapshot(ctx.pool) as conn:
        found = await datasets.get_outline(conn, user.org_id, name)
        dataset_uuid, version = found["dataset_uuid"], found["dataset_version"]
        columns = found.pop("columns")
        if columns is None:
            columns = await datasets.get_planned_columns(conn, version)
        description = await datasets.get_description(conn, dataset_uuid)
        generations = await partition_queries.list_generation_names(conn, dataset_uuid)
        consumers = await cursors.list_consumers(conn, dataset_uuid, version)
    return DatasetOutline(
        **found,
        description=description.description,
        columns=describe_columns(columns, description),
        generations=generations,
        consumers=consumers,
    )


@router.get("/datasets/{name}/certificates")
async def list_certificates(
    name: Name,
    user: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    blocks: BlocksParameter = None,
) -> CertificateList:
    """List what is certified of each partition: verification, hashes, inputs and definition."""
    span = Range.parse(blocks) if blocks is not None else None
    after = page.after(int, str)
    async with snapshot(ctx.pool) as conn:
        dataset = await datasets.get_dataset(conn, user.org_id, name)
        version = dataset.dataset_version
        rows = await certificates.list_certificates(
            conn, version, blocks=span, after=after, limit=page.fetch
        )
        gaps = await partition_queries.list_gaps(conn, version) if after is None else []
    items, following = page.cut(rows, _make_partition_key)
    return CertificateList(
        items=items,
        next=following,
        dataset=name,
        dataset_uuid=dataset.dataset_uuid,
        dataset_version=version,
        gaps=gaps,
    )


@router.get("/datasets/{name}/manifest")
async def get_manifest(
    name: Name, user: CallerDep, ctx: ContextDep, blocks: BlocksParameter = None
) -> SignedManifest:
    """Sign the certificates of a dataset as one document, which can be checked offline."""
    signer = require_signer(ctx.manifest_signer)
    span = Range.parse(blocks) if blocks is not None else None
    async with snapshot(ctx.pool) as conn:
        dataset = await datasets.get_dataset(conn, user.org_id, name)
        version = dataset.dataset_version
        rows = await certificates.list_certificates(
            conn, version, blocks=span, after=None, limit=MAX_PARTITIONS + 1
        )
        gaps = await partition_queries.list_gaps(conn, version)
    if len(rows) > MAX_PARTITIONS:
        raise Invalid([Fault("range", f"has more than {MAX_PARTITIONS} partitions; give a range")])
    return await asyncio.to_thread(sign_manifest, signer, dataset, span, gaps, rows)


@router.get("/certificate-keys")
async def get_certificate_keys(user: CallerDep, ctx: ContextDep) -> Jwks:
    """Return the public keys of manifests. Keep a copy: it checks manifests without the stack."""
    return Jwks.model_validate(require_signer(ctx.manifest_signer).jwks())


def _make_dataset_key(dataset: DatasetItem) -> tuple[int, str, str, str, str]:
    name = dataset.name
    return int(name is None), name or "", dataset.dag, dataset.job, dataset.output


def _make_partition_key(partition: PartitionItem | StoredCertificate) -> tuple[int, str]:
    return -1 if partition.start is None else partition.start, partition.partition_key
