"""What occupies object storage, and the deletion of what nothing uses."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query

from trace_etl.api.user.data.storage import StorageReply, StorageRetentions, SweepReply, UnusedList
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import PageDep
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.storage import usage

router = APIRouter(prefix="/v1", tags=["storage"])
_SWEEP_SECONDS = 20.0  # clients wait for 30 s


@router.get("/storage")
async def get_storage(user: CallerDep, ctx: ContextDep) -> StorageReply:
    """Sum up object storage by dataset and kind, with what the next sweep deletes."""
    retention = ctx.sweeper.retention
    async with snapshot(ctx.pool) as conn:
        items = await usage.list_usage(conn, user.org_id, retention)
        foreign = await usage.count_foreign(conn, user.org_id)
    seconds = {kind: kept.total_seconds() for kind, kept in vars(retention).items()}
    return StorageReply(
        items=items,
        foreign=foreign,
        retention_seconds=StorageRetentions(**seconds),
        sweeps=ctx.sweeps_storage,
    )


@router.get("/storage/unused")
async def list_unused(
    user: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    due: Annotated[bool, Query(description="Only what the next sweep deletes.")] = False,
) -> UnusedList:
    """List unused prefixes and batches, those that are deleted first at the top."""
    async with ctx.pool.connection() as conn:
        rows = await usage.list_unused(
            conn,
            user.org_id,
            ctx.sweeper.retention,
            due=due,
            after=page.after(datetime, str),
            limit=page.fetch,
        )
    return page.reply(UnusedList, rows, lambda row: (row.sweep_at, row.key))


@router.post("/storage/sweep")
async def sweep_storage(user: CallerDep, ctx: ContextDep) -> SweepReply:
    """Delete now what is due, instead of waiting for the next pass of the sweeper."""
    swept, is_complete = await ctx.sweeper.sweep(user.org_id, seconds=_SWEEP_SECONDS)
    return SweepReply(**vars(swept), is_complete=is_complete)
