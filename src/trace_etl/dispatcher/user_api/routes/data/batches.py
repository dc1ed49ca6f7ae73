"""Batches of buffered datasets."""

from uuid import UUID

from fastapi import APIRouter

from trace_etl.api.body import Name
from trace_etl.api.user.data.batches import (
    BatchDetail,
    BatchDropped,
    BatchList,
    BatchRetried,
    BatchState,
)
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import PageDep
from trace_etl.model.errors import NotFound
from trace_etl.state.catalog import datasets
from trace_etl.state.db.pool import transaction
from trace_etl.state.partitions import buffers

router = APIRouter(prefix="/v1", tags=["datasets"])


@router.get("/datasets/{name}/batches")
async def list_batches(
    name: Name, user: CallerDep, ctx: ContextDep, page: PageDep, state: BatchState | None = None
) -> BatchList:
    """List the batches that were published to a buffered dataset, newest first."""
    (before,) = page.after(int) or (None,)
    async with ctx.pool.connection() as conn:
        dataset_uuid = await datasets.find_uuid(conn, user.org_id, name)
        if dataset_uuid is None:
            raise NotFound(f"no published dataset {name!r}; `trace datasets` lists them")
        rows = await buffers.list_batches(
            conn, user.org_id, dataset_uuid, state=state, before=before, limit=page.fetch
        )
    return page.reply(BatchList, rows, lambda batch: (batch.publish_no,))


@router.get("/batches")
async def list_all_batches(
    user: CallerDep, ctx: ContextDep, page: PageDep, state: BatchState | None = None
) -> BatchList:
    """List the batches of all buffered datasets, newest first."""
    (before,) = page.after(int) or (None,)
    async with ctx.pool.connection() as conn:
        rows = await buffers.list_batches(
            conn, user.org_id, None, state=state, before=before, limit=page.fetch
        )
    return page.reply(BatchList, rows, lambda batch: (batch.publish_no,))


@router.get("/batches/{publish_id}")
async def get_batch(publish_id: UUID, user: CallerDep, ctx: ContextDep) -> BatchDetail:
    """Show one batch, with the reason if it failed."""
    async with ctx.pool.connection() as conn:
        return await buffers.get_batch(conn, user.org_id, publish_id)


@router.post("/batches/{publish_id}/drop")
async def drop_batch(publish_id: UUID, user: CallerDep, ctx: ContextDep) -> BatchDropped:
    """Forget a failed batch: its rows will never be written, and its file is deleted."""
    async with transaction(ctx.pool) as conn:
        await buffers.drop_batch(conn, user.org_id, publish_id)
    return BatchDropped(publish_id=publish_id)


@router.post("/batches/{publish_id}/retry")
async def retry_batch(publish_id: UUID, user: CallerDep, ctx: ContextDep) -> BatchRetried:
    """Deliver a failed or waiting batch to the sink again."""
    async with transaction(ctx.pool) as conn:
        await buffers.redeliver_batch(conn, user.org_id, publish_id)
    ctx.wake.outbox.set()
    return BatchRetried(publish_id=publish_id)
