"""Pauses and backpressure."""

from dataclasses import asdict

import structlog
from fastapi import APIRouter

from trace_etl.api.body import Name
from trace_etl.api.user import pressure as wire
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import MOST, PageDep
from trace_etl.state.db.pool import transaction
from trace_etl.state.flow import loads, operator_caps, pauses

router = APIRouter(prefix="/v1", tags=["pressure"])
_log = structlog.stdlib.get_logger()


@router.get("/pressure")
async def get_pressure(user: CallerDep, ctx: ContextDep) -> wire.Pressure:
    """The queues that have limits, what runs of each operator, and what is deferred."""
    async with ctx.pool.connection() as conn:
        queues = await loads.queues(conn, user.org_id)
        operators = await loads.operators(conn, user.org_id)
        deferred = await loads.deferred(conn, user.org_id)
        caps = await operator_caps.listing(conn)
    return wire.Pressure(
        queues=[wire.QueueItem.model_validate(asdict(queue)) for queue in queues],
        operators=[wire.OperatorItem(**asdict(o), cap=caps.get(o.operator)) for o in operators],
        deferred_events=deferred,
    )


@router.get("/pauses")
async def list_pauses(
    user: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    dag: Name | None = None,
    job: Name | None = None,
) -> wire.PauseList:
    """Who waits for whom, since when and why."""
    after = page.after(str, str, str)
    async with ctx.pool.connection() as conn:
        found = await pauses.listing(
            conn, user.org_id, dag=dag, job=job, limit=page.fetch, after=after
        )
    items, following = page.cut(found, lambda one: (one.dag, one.job, one.by))
    return wire.PauseList(
        items=[wire.PauseItem.model_validate(asdict(one)) for one in items], next=following
    )


@router.post("/pauses")
async def pause(body: wire.PauseRequest, user: CallerDep, ctx: ContextDep) -> wire.PauseReply:
    """Stop creating and starting tasks of a job or a DAG. What runs, runs on; nothing is lost."""
    async with transaction(ctx.pool) as conn:
        jobs = await pauses.pause(
            conn,
            user.org_id,
            body.dag,
            body.job,
            by=user.name,
            reason=body.reason,
            tier=body.tier,
        )
    ctx.wake.outbox.set()  # a pause that became narrower releases too
    _log.info("jobs_paused", dag=body.dag, jobs=jobs, by=user.name, tier=body.tier)
    return wire.PauseReply(dag=body.dag, jobs=jobs)


@router.post("/pauses/resume")
async def resume(body: wire.ResumeRequest, user: CallerDep, ctx: ContextDep) -> wire.ResumeReply:
    """Take the pauses of people back. Backpressure goes on holding what it holds."""
    async with transaction(ctx.pool) as conn:
        jobs = await pauses.resume(conn, user.org_id, body.dag, body.job)
        left = await pauses.listing(
            conn, user.org_id, dag=body.dag, job=body.job, limit=MOST, after=None
        )
    ctx.wake.outbox.set()
    _log.info("jobs_resumed", dag=body.dag, jobs=jobs, by=user.name)
    still = [wire.StillPaused.model_validate(asdict(one)) for one in left]
    return wire.ResumeReply(dag=body.dag, jobs=jobs, still_paused=still)
