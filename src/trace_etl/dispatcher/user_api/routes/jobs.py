"""Jobs."""

from typing import Annotated

from fastapi import APIRouter, Depends

from trace_etl.api.body import Name
from trace_etl.api.user.jobs import JobDetail, JobList
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.listing import ListingDep
from trace_etl.state.catalog import jobs
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
