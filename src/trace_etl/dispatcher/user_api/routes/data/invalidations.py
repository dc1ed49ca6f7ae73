"""Invalidations of datasets."""

from datetime import datetime
from uuid import UUID

from fastapi import APIRouter

from trace_etl.api.body import Name
from trace_etl.api.user.data.invalidations import (
    InvalidateReply,
    InvalidateRequest,
    InvalidationList,
)
from trace_etl.dispatcher.task_api.authorization.output_authorization import parse_invalid_range
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import PageDep
from trace_etl.state.catalog import datasets
from trace_etl.state.db.pool import transaction
from trace_etl.state.invalidations import invalidations, rebuilds
from trace_etl.state.invalidations.invalidations import NewInvalidation

router = APIRouter(prefix="/v1", tags=["datasets"])


@router.post("/datasets/{name}/invalidations")
async def invalidate(
    name: Name, body: InvalidateRequest, user: CallerDep, ctx: ContextDep
) -> InvalidateReply:
    """Mark a scope as invalid and rebuild everything derived from it.

    With `rebuild`, the scope itself is rebuilt first.
    """
    span = parse_invalid_range(body.partition_key, body.start, body.end)
    async with transaction(ctx.pool) as conn:
        dataset = await datasets.get_dataset(conn, user.org_id, name)
        new = NewInvalidation(
            dataset_uuid=dataset.dataset_uuid,
            dataset_version=dataset.dataset_version,
            kind=body.kind,
            partition_key=body.partition_key,
            range_start=span.start if span else None,
            range_end=span.end if span else None,
            filter=body.filter,
            reason=body.reason,
        )
        await rebuilds.require_published(conn, new)
        task_count = await rebuilds.rebuild(conn, new) if body.rebuild else 0
        recorded = (
            []
            if task_count
            else await invalidations.record(
                conn, user.org_id, [new], made_by=f"user:{user.name}", fence=None
            )
        )
    ctx.wake.outbox.set()
    return InvalidateReply(
        invalidation_id=recorded[0] if recorded else None,
        dataset=name,
        dataset_version=dataset.dataset_version,
        kind=body.kind,
        partition_key=body.partition_key,
        start=new.range_start,
        end=new.range_end,
        rebuilding=task_count,
    )


@router.get("/invalidations")
async def list_invalidations(
    user: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    dataset: Name | None = None,
    is_reorganisation: bool | None = None,
) -> InvalidationList:
    """List invalidations, newest first, with the progress of their consumers."""
    after = page.after(datetime, UUID)
    async with ctx.pool.connection() as conn:
        rows = await invalidations.list_invalidations(
            conn,
            user.org_id,
            dataset=dataset,
            is_reorganisation=is_reorganisation,
            after=after,
            limit=page.fetch,
        )
    return page.reply(InvalidationList, rows, lambda item: (item.made_at, item.invalidation_id))
