"""Jobs, and the schedules of cron sources."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends

from trace_etl.api.body import Name
from trace_etl.api.user.dags.jobs import JobDetail, JobList
from trace_etl.api.user.dags.schedules import LastTick, ScheduleList
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.listing import ListingDep
from trace_etl.model.errors import Fault, Invalid
from trace_etl.state.catalog import jobs, schedules
from trace_etl.state.catalog.jobs import JobFilter

router = APIRouter(prefix="/v1", tags=["jobs"])


@router.get("/jobs")
async def list_jobs(listing: ListingDep, filters: Annotated[JobFilter, Depends()]) -> JobList:
    """List the jobs of the deployed DAGs, by name."""
    rows = await listing.fetch(jobs.list_jobs, filters, str, str)
    return listing.reply(JobList, rows, lambda job: (job.dag, job.job))


@router.get("/jobs/{dag}/{job}")
async def get_job(dag: Name, job: Name, user: CallerDep, ctx: ContextDep) -> JobDetail:
    """Show one job: its settings, inputs, outputs, queued and running tasks."""
    async with ctx.pool.connection() as conn:
        return await jobs.get_job(conn, user.org_id, dag, job)


@router.get("/schedules")
async def list_schedules(listing: ListingDep) -> ScheduleList:
    """List the cron sources of the deployed DAGs and their schedules, by name."""
    rows = await listing.fetch(schedules.list_schedules, None, str, str)
    return listing.reply(ScheduleList, rows, lambda item: (item.dag, item.job))


@router.get("/schedules/{dag}/{job}/last-tick")
async def get_last_tick(
    dag: Name, job: Name, until: datetime, user: CallerDep, ctx: ContextDep
) -> LastTick:
    """Show the newest tick of a cron source up to a time."""
    if until.tzinfo is None:
        raise Invalid([Fault("until", "has no time zone; add one, such as `Z`")])
    async with ctx.pool.connection() as conn:
        tick = await schedules.find_last_tick(conn, user.org_id, dag, job, until=until)
    return LastTick(tick=tick)
