"""Pauses and backpressure."""

from typing import Annotated

import structlog
from fastapi import APIRouter, Depends

from trace_etl.api.user.tasks.pressure import (
    PauseList,
    PauseReply,
    PauseRequest,
    Pressure,
    ResumeReply,
    ResumeRequest,
    StillPaused,
)
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.listing import ListingDep
from trace_etl.dispatcher.user_api.pages import MAX_LIMIT
from trace_etl.state.db.pool import transaction
from trace_etl.state.db.rows import JobNameFilter
from trace_etl.state.flow import loads, pauses

router = APIRouter(prefix="/v1", tags=["pressure"])
_log = structlog.stdlib.get_logger()


@router.get("/pressure")
async def get_pressure(user: CallerDep, ctx: ContextDep) -> Pressure:
    """Show the queues that have limits, the load of each operator, and the deferred events."""
    async with ctx.pool.connection() as conn:
        return Pressure(
            queues=await loads.list_queues(conn, user.org_id),
            operators=await loads.list_operators(conn, user.org_id),
            deferred_events=await loads.count_deferred_events(conn, user.org_id),
        )


@router.get("/pauses")
async def list_pauses(
    listing: ListingDep, filters: Annotated[JobNameFilter, Depends()]
) -> PauseList:
    """List paused jobs, each with the user or queue that paused it, the time and the reason."""
    rows = await listing.fetch(pauses.list_pauses, filters, str, str, str)
    return listing.reply(PauseList, rows, lambda pause: (pause.dag, pause.job, pause.by))


@router.post("/pauses")
async def pause(body: PauseRequest, user: CallerDep, ctx: ContextDep) -> PauseReply:
    """Pause a job or a DAG: no task is created or started. Running tasks continue."""
    async with transaction(ctx.pool) as conn:
        jobs = await pauses.pause(
            conn, user.org_id, body.dag, body.job, by=user.name, reason=body.reason, tier=body.tier
        )
    ctx.wake.outbox.set()  # narrowing a pause to bulk work resumes the rest
    _log.info("jobs_paused", dag=body.dag, jobs=jobs, by=user.name, tier=body.tier)
    return PauseReply(dag=body.dag, jobs=jobs)


@router.post("/pauses/resume")
async def resume(body: ResumeRequest, user: CallerDep, ctx: ContextDep) -> ResumeReply:
    """Remove the pauses that users set. Pauses by backpressure stay."""
    filters = JobNameFilter(body.dag, body.job)
    async with transaction(ctx.pool) as conn:
        jobs = await pauses.resume(conn, user.org_id, body.dag, body.job)
        remaining = await pauses.list_pauses(
            conn, user.org_id, filters, after=None, limit=MAX_LIMIT
        )
    ctx.wake.outbox.set()
    _log.info("jobs_resumed", dag=body.dag, jobs=jobs, by=user.name)
    still_paused = [StillPaused(job=pause.job, by=pause.by, tier=pause.tier) for pause in remaining]
    return ResumeReply(dag=body.dag, jobs=jobs, still_paused=still_paused)
