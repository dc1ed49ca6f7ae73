"""The state of everything, and failures by error."""

from fastapi import APIRouter

from trace_etl.api.body import Name
from trace_etl.api.user.views.overview import FailureGroups, Overview
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.feed import overview

router = APIRouter(prefix="/v1", tags=["overview"])


@router.get("/overview")
async def get_overview(user: CallerDep, ctx: ContextDep) -> Overview:
    """Sum up what runs, waits and failed, the last hour, and the position of every followed chain."""
    async with snapshot(ctx.pool) as conn:
        totals = await overview.get_totals(conn, user.org_id)
        minutes = await overview.list_minutes(conn, user.org_id)
        chains = await overview.list_chains(conn, user.org_id)
    return Overview(
        **totals,
        completed_last_hour=sum(minute.completed for minute in minutes),
        failed_last_hour=sum(minute.failed for minute in minutes),
        minutes=minutes,
        chains=chains,
    )


@router.get("/failures")
async def list_failures(user: CallerDep, ctx: ContextDep, dag: Name | None = None) -> FailureGroups:
    """Group the tasks that failed permanently by job and error, newest first."""
    async with ctx.pool.connection() as conn:
        return FailureGroups(items=await overview.list_failures(conn, user.org_id, dag))
