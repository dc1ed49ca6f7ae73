"""Backfills."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

import structlog
from fastapi import APIRouter, Depends

from trace_etl.api.user.tasks import backfills as bodies
from trace_etl.dispatcher.user_api import backfill_planning as planning
from trace_etl.dispatcher.user_api.context import Caller, CallerDep, ContextDep
from trace_etl.dispatcher.user_api.listing import ListingDep
from trace_etl.dispatcher.user_api.pages import MAX_LIMIT, PageDep
from trace_etl.model.errors import Conflict
from trace_etl.model.scope import Range
from trace_etl.state.db.pool import transaction
from trace_etl.state.flow import backfill_steps as steps
from trace_etl.state.flow import backfills
from trace_etl.state.flow.backfills import BackfillFilter

router = APIRouter(prefix="/v1", tags=["backfills"])
_log = structlog.stdlib.get_logger()


@router.post("/backfills/preview")
async def preview_backfill(
    body: bodies.BackfillRequest, user: CallerDep, ctx: ContextDep
) -> bodies.BackfillPreview:
    """Show what a backfill would do: its chunks, which of them exist, and the expected rows."""
    async with ctx.pool.connection() as conn:
        planned = await planning.plan(conn, _make_request(body, user))
    return _preview(body, planned)


@router.post("/backfills")
async def create_backfill(
    body: bodies.BackfillRequest, user: CallerDep, ctx: ContextDep
) -> bodies.BackfillReply:
    """Start a backfill of a range of a job, with bulk tasks. A repeated request returns the same backfill."""
    async with transaction(ctx.pool) as conn:
        backfill_id, is_new = await planning.request(conn, _make_request(body, user), user.name)
        backfill = await backfills.get_backfill(conn, user.org_id, backfill_id)
    ctx.wake.backfills.set()
    if is_new:
        _log.info("backfill_created", backfill_id=str(backfill_id), dag=body.dag, job=body.job)
    return bodies.BackfillReply(**dict(backfill), new=is_new)


@router.get("/backfills")
async def list_backfills(
    listing: ListingDep, filters: Annotated[BackfillFilter, Depends()]
) -> bodies.BackfillList:
    """List backfills, newest first."""
    rows = await listing.fetch(backfills.list_backfills, filters, datetime, UUID)
    return listing.reply(
        bodies.BackfillList, rows, lambda item: (item.created_at, item.backfill_id)
    )


@router.get("/backfills/{backfill_id}")
async def get_backfill(backfill_id: UUID, user: CallerDep, ctx: ContextDep) -> bodies.BackfillItem:
    """Show one backfill: its progress, rate and remaining time."""
    async with ctx.pool.connection() as conn:
        return await backfills.get_backfill(conn, user.org_id, backfill_id)


@router.get("/backfills/{backfill_id}/chunks")
async def list_chunks(
    backfill_id: UUID,
    user: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    state: bodies.ChunkState | None = None,
) -> bodies.ChunkList:
    """List the chunks of a backfill by first block, each with its task and error."""
    (after,) = page.after(int) or (-1,)
    async with ctx.pool.connection() as conn:
        await backfills.get_backfill(conn, user.org_id, backfill_id)
        rows = await backfills.list_chunks(
            conn, backfill_id, state=state, after=after, limit=page.fetch
        )
    return page.reply(bodies.ChunkList, rows, lambda chunk: (chunk.start,))


@router.post("/backfills/{backfill_id}/cancel")
async def cancel_backfill(
    backfill_id: UUID, user: CallerDep, ctx: ContextDep
) -> bodies.BackfillCanceled:
    """Cancel a backfill: waiting tasks are canceled, running tasks are asked to stop."""
    async with transaction(ctx.pool) as conn:
        state = await steps.lock(conn, user.org_id, backfill_id)
        if state in ("complete", "failed"):
            raise Conflict(f"the backfill is {state} already")
        canceled = steps.CanceledTasks(0, 0)
        if state == "running":
            canceled = await steps.cancel(
                conn, backfill_id, f"the backfill was canceled by {user.name}"
            )
    _log.info("backfill_canceled", backfill_id=str(backfill_id), by=user.name)
    return bodies.BackfillCanceled(
        backfill_id=backfill_id,
        state="canceled",
        canceled_tasks=canceled.tasks,
        asked_to_stop=canceled.running,
    )


@router.post("/backfills/{backfill_id}/resume")
async def resume_backfill(
    backfill_id: UUID, user: CallerDep, ctx: ContextDep
) -> bodies.BackfillResumed:
    """Retry the chunks that failed or were canceled."""
    async with transaction(ctx.pool) as conn:
        state = await steps.lock(conn, user.org_id, backfill_id)
        if state == "complete":
            raise Conflict("the backfill is complete; nothing to resume")
        retried = 0 if state == "running" else await steps.resume(conn, backfill_id)
    ctx.wake.backfills.set()
    _log.info("backfill_resumed", backfill_id=str(backfill_id), by=user.name, chunks=retried)
    return bodies.BackfillResumed(backfill_id=backfill_id, state="running", chunks=retried)


def _make_request(body: bodies.BackfillRequest, user: Caller) -> planning.BackfillScope:
    span = Range.checked(body.start, body.end)
    return planning.BackfillScope(user.org_id, body.dag, body.job, span, body.chunk, body.force)


def _preview(
    body: bodies.BackfillRequest, planned: planning.BackfillPlan
) -> bodies.BackfillPreview:
    return bodies.BackfillPreview(
        dag=body.dag,
        job=body.job,
        start=body.start,
        end=body.end,
        fed_by=planned.target.upstream or "",
        chunk=planned.size,
        build=planned.count("build"),
        rebuild=planned.count("rebuild"),
        there=planned.count("there"),
        no_input=planned.count("no_input"),
        blocks=sum(chunk.span.length for chunk in planned.to_build),
        rows=planned.rows,
        chunks=[
            bodies.ChunkPlan(start=c.span.start, end=c.span.end, action=c.action, rows=c.rows)
            for c in planned.chunks[:MAX_LIMIT]
        ],
    )
