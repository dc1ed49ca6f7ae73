"""Invalidations: what people say is wrong, and what became of it."""

from dataclasses import asdict

from fastapi import APIRouter

from trace_etl.api.body import Name
from trace_etl.api.user import invalidations as wire
from trace_etl.dispatcher.task_api.output_authorization import parse_invalid_range
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import PageDep, newest
from trace_etl.state.catalog import datasets
from trace_etl.state.db.pool import transaction
from trace_etl.state.partitions import invalidations, rebuilds
from trace_etl.state.partitions.invalidations import InvalidationView, NewInvalidation

router = APIRouter(prefix="/v1", tags=["datasets"])


@router.post("/datasets/{name}/invalidations")
async def invalidate(
    name: Name, body: wire.InvalidateRequest, user: CallerDep, ctx: ContextDep
) -> wire.InvalidateReply:
    """Have everything that was made from a scope made again; with `rebuild`, the scope first."""
    span = parse_invalid_range(body.partition_key, body.start, body.end)
    async with transaction(ctx.pool) as conn:
        view = await datasets.get(conn, user.org_id, name)
        new = NewInvalidation(
            dataset_uuid=view.dataset_uuid,
            dataset_version=view.dataset_version,
            kind=body.kind,
            partition_key=body.partition_key,
            range_start=span.start if span else None,
            range_end=span.end if span else None,
            filter=body.filter,
            reason=body.reason,
        )
        await rebuilds.require_known(conn, new)
        made = await rebuilds.rebuild(conn, new) if body.rebuild else 0
        recorded = (
            []
            if made
            else await invalidations.record(
                conn, user.org_id, [new], made_by=f"user:{user.name}", fence=None
            )
        )
    ctx.wake.outbox.set()
    return wire.InvalidateReply(
        invalidation_id=recorded[0] if recorded else None,
        dataset=name,
        dataset_version=view.dataset_version,
        kind=body.kind,
        partition_key=body.partition_key,
        start=new.range_start,
        end=new.range_end,
        rebuilding=made,
    )


@router.get("/invalidations")
async def list_invalidations(
    user: CallerDep, ctx: ContextDep, page: PageDep, dataset: Name | None = None
) -> wire.InvalidationList:
    """What became invalid, newest first, and how far its consumers have got."""
    async with ctx.pool.connection() as conn:
        found = await invalidations.listing(
            conn, user.org_id, name=dataset, after=newest(page), limit=page.fetch
        )
    items, following = page.cut(found, lambda i: (i.made_at, i.invalidation_id))
    return wire.InvalidationList(items=[_item(i) for i in items], next=following)


def _item(view: InvalidationView) -> wire.InvalidationItem:
    return wire.InvalidationItem.model_validate(
        {**asdict(view), "start": view.range_start, "end": view.range_end}
    )
