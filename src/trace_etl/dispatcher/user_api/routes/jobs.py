"""Jobs."""

from dataclasses import asdict

from fastapi import APIRouter

from trace_etl.api.body import Name
from trace_etl.api.user import jobs as wire
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import PageDep
from trace_etl.policy.waiting_reasons import Upstream, job_reason
from trace_etl.state.catalog import jobs
from trace_etl.state.catalog.jobs import JobFilter
from trace_etl.state.tasks import upstream_work

router = APIRouter(prefix="/v1", tags=["jobs"])


@router.get("/jobs")
async def list_jobs(
    user: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    dag: Name | None = None,
    activation: wire.Activation | None = None,
    operator: Name | None = None,
    runtime: Name | None = None,
    source_kind: wire.SourceKind | None = None,
    paused: bool | None = None,
) -> wire.JobList:
    """The jobs of the deployed DAGs, by name."""
    which = JobFilter(dag, activation, operator, runtime, source_kind, paused)
    after = page.after(str, str)
    async with ctx.pool.connection() as conn:
        found = await jobs.listing(
            conn,
            user.org_id,
            which,
            after=(after[0], after[1]) if after else None,
            limit=page.fetch,
        )
    items, following = page.cut(found, lambda view: (view.dag, view.job))
    return wire.JobList(
        items=[wire.JobItem.model_validate(asdict(view)) for view in items], next=following
    )


@router.get("/jobs/{dag}/{job}")
async def get_job(dag: Name, job: Name, user: CallerDep, ctx: ContextDep) -> wire.JobDetail:
    """One job: its settings, its edges, and what of it waits and runs."""
    async with ctx.pool.connection() as conn:
        found = await jobs.get(conn, user.org_id, dag, job)
        above = await upstream_work.above(conn, found.revision_id)
    reason = job_reason(
        queued=found.queued,
        running=found.running,
        paused_by=found.paused_by,
        above=[
            Upstream(_name(a, dag), a.queued, a.running, a.retrying, a.failed, a.paused_by)
            for a in above
        ],
    )
    return wire.JobDetail.model_validate(
        {**asdict(found), "upstream": [asdict(a) for a in above], "reason": reason}
    )


def _name(work: upstream_work.UpstreamWork, dag: str) -> str:
    return work.job if work.dag == dag else f"{work.dag}.{work.job}"
