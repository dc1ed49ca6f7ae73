"""Backfills."""

from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

import structlog
from fastapi import APIRouter

from trace_etl.api.body import Name
from trace_etl.api.user import backfills as wire
from trace_etl.dispatcher.user_api.backfill_planning import Plan, Wish, plan, request
from trace_etl.dispatcher.user_api.context import Caller, CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import MOST, PageDep
from trace_etl.model.errors import Conflict
from trace_etl.model.scope import Range
from trace_etl.policy.backfill import time_left
from trace_etl.state.db.pool import transaction
from trace_etl.state.flow import backfill_steps as steps
from trace_etl.state.flow import backfills
from trace_etl.state.flow.backfills import BackfillView, ChunkView

router = APIRouter(prefix="/v1", tags=["backfills"])
_log = structlog.stdlib.get_logger()


@router.post("/backfills/preview")
async def preview_backfill(
    body: wire.BackfillRequest, user: CallerDep, ctx: ContextDep
) -> wire.BackfillPreview:
    """What a backfill would do: its chunks, which are there already, how many rows to expect."""
    async with ctx.pool.connection() as conn:
        made = await plan(conn, _wish(body, user))
    return _preview(body, made)


@router.post("/backfills")
async def create_backfill(
    body: wire.BackfillRequest, user: CallerDep, ctx: ContextDep
) -> wire.BackfillReply:
    """Fill a range of a job, as bulk work. The same request again is the same backfill."""
    async with transaction(ctx.pool) as conn:
        backfill_id, is_new = await request(conn, _wish(body, user), user.name)
        view = await backfills.get(conn, user.org_id, backfill_id)
    ctx.wake.backfills.set()
    if is_new:
        _log.info("backfill_created", backfill_id=str(backfill_id), dag=body.dag, job=body.job)
    return wire.BackfillReply.model_validate({**_item(view), "new": is_new})


@router.get("/backfills")
async def list_backfills(
    user: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    dag: Name | None = None,
    job: Name | None = None,
    state: wire.State | None = None,
) -> wire.BackfillList:
    """Backfills, newest first."""
    after = page.after(datetime, UUID)
    async with ctx.pool.connection() as conn:
        found = await backfills.listing(
            conn, user.org_id, dag=dag, job=job, state=state, limit=page.fetch, after=after
        )
    items, following = page.cut(found, lambda one: (one.created_at, one.backfill_id))
    return wire.BackfillList(
        items=[wire.BackfillItem.model_validate(_item(one)) for one in items], next=following
    )


@router.get("/backfills/{backfill_id}")
async def get_backfill(backfill_id: UUID, user: CallerDep, ctx: ContextDep) -> wire.BackfillItem:
    """One backfill: how far it is, how fast, and how long it will take."""
    async with ctx.pool.connection() as conn:
        view = await backfills.get(conn, user.org_id, backfill_id)
    return wire.BackfillItem.model_validate(_item(view))


@router.get("/backfills/{backfill_id}/chunks")
async def list_chunks(
    backfill_id: UUID,
    user: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    state: wire.ChunkState | None = None,
) -> wire.ChunkList:
    """The chunks of a backfill by their first block, each with its task and why that failed."""
    after = page.after(int)
    async with ctx.pool.connection() as conn:
        await backfills.get(conn, user.org_id, backfill_id)
        found = await backfills.chunks(
            conn,
            backfill_id,
            state=state,
            limit=page.fetch,
            after=after[0] if after else None,
        )
    items, following = page.cut(found, lambda one: (one.range_start,))
    return wire.ChunkList(
        items=[wire.ChunkItem.model_validate(_chunk(one)) for one in items], next=following
    )


@router.post("/backfills/{backfill_id}/cancel")
async def cancel_backfill(
    backfill_id: UUID, user: CallerDep, ctx: ContextDep
) -> wire.BackfillCanceled:
    """End a backfill in one transaction: what waits is canceled, what runs is asked to stop."""
    async with transaction(ctx.pool) as conn:
        state = await steps.lock(conn, user.org_id, backfill_id)
        if state in ("complete", "failed"):
            raise Conflict(f"the backfill is {state} already")
        done = steps.Canceled(0, 0)
        if state == "running":
            done = await steps.cancel(
                conn, backfill_id, f"the backfill was canceled by {user.name}"
            )
    _log.info("backfill_canceled", backfill_id=str(backfill_id), by=user.name)
    return wire.BackfillCanceled(
        backfill_id=backfill_id,
        state="canceled",
        canceled_tasks=done.tasks,
        asked_to_stop=done.running,
    )


@router.post("/backfills/{backfill_id}/resume")
async def resume_backfill(
    backfill_id: UUID, user: CallerDep, ctx: ContextDep
) -> wire.BackfillResumed:
    """Give the chunks that failed or were canceled another round."""
    async with transaction(ctx.pool) as conn:
        state = await steps.lock(conn, user.org_id, backfill_id)
        if state == "complete":
            raise Conflict("the backfill is complete: there is nothing to resume")
        again = 0 if state == "running" else await steps.resume(conn, backfill_id)
    ctx.wake.backfills.set()
    _log.info("backfill_resumed", backfill_id=str(backfill_id), by=user.name, chunks=again)
    return wire.BackfillResumed(backfill_id=backfill_id, state="running", chunks=again)


def _wish(body: wire.BackfillRequest, user: Caller) -> Wish:
    span = Range.checked(body.start, body.end)
    return Wish(user.org_id, body.dag, body.job, span, body.chunk, body.force)


def _preview(body: wire.BackfillRequest, made: Plan) -> wire.BackfillPreview:
    return wire.BackfillPreview(
        dag=body.dag,
        job=body.job,
        start=body.start,
        end=body.end,
        fed_by=made.target.upstream or "",
        chunk=made.size,
        build=made.count("build"),
        rebuild=made.count("rebuild"),
        there=made.count("there"),
        no_input=made.count("no_input"),
        blocks=sum(chunk.span.length for chunk in made.to_build),
        rows=made.rows,
        chunks=[
            wire.ChunkPlan(start=c.span.start, end=c.span.end, action=c.action, rows=c.rows)
            for c in made.chunks[:MOST]
        ],
    )


def _item(view: BackfillView) -> dict[str, Any]:
    rate, left = time_left(view.blocks_lately, view.blocks_left, view.seconds_lately)
    counts = dict.fromkeys(("pending", "created", "completed", "failed", "canceled", "skipped"), 0)
    return {
        **asdict(view),
        **counts,
        **view.chunks,
        "start": view.range_start,
        "end": view.range_end,
        "blocks_per_second": rate,
        "seconds_left": left,
    }


def _chunk(one: ChunkView) -> dict[str, Any]:
    names = {"start": one.range_start, "end": one.range_end, "rows": one.row_count}
    return {**asdict(one), **names}
