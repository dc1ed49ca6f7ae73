"""The state of everything, and failures by error."""

import time
from uuid import UUID

import structlog
from fastapi import APIRouter

from trace_etl.api.body import Name
from trace_etl.api.user.views.overview import (
    FailureGroups,
    FollowedChain,
    Overview,
)
from trace_etl.dispatcher.user_api.context import CallerDep, Context, ContextDep
from trace_etl.model.health import HealthProblem
from trace_etl.policy.health import HealthFacts, WorkerFacts, find_problems
from trace_etl.queues.queue import QueueUnavailable
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.feed import overview
from trace_etl.state.feed.overview import LiveTasks

router = APIRouter(prefix="/v1", tags=["overview"])
_log = structlog.stdlib.get_logger()
REST = 9.0
"""An overview is returned again for this many times the seconds that it took, so that pages which ask
for it on each change use at most a tenth of a connection, however many tasks there are."""
_MAX_AGE_SECONDS = 5.0


@router.get("/overview")
async def get_overview(user: CallerDep, ctx: ContextDep) -> Overview:
    """Sum up health, what runs, waits and failed, the last hour, and the lag of every followed chain."""
    fresh_until, found = ctx.overviews.get(user.org_id, (0.0, None))
    began = time.monotonic()
    if found is None or began >= fresh_until:
        found = await _sum_up(ctx, user.org_id)
        ended = time.monotonic()
        rest = min(_MAX_AGE_SECONDS, REST * (ended - began))
        ctx.overviews[user.org_id] = (ended + rest, found)
    return found


async def _sum_up(ctx: Context, org_id: UUID) -> Overview:
    async with snapshot(ctx.pool) as conn:
        totals = await overview.get_totals(conn, org_id)
        live = await overview.count_live(conn, org_id)
        minutes = await overview.list_minutes(conn, org_id)
        chains = await overview.list_chains(conn, org_id)
    problems = await _list_problems(ctx, totals, live, chains)
    return Overview(
        **totals,
        is_healthy=not problems,
        problems=problems,
        queued=sum(tasks.queued for tasks in live),
        running=sum(tasks.running for tasks in live),
        completed_last_hour=sum(minute.completed for minute in minutes),
        failed_last_hour=sum(minute.failed for minute in minutes),
        minutes=minutes,
        chains=chains,
    )


async def _list_problems(
    ctx: Context, totals: dict[str, int], live: list[LiveTasks], chains: list[FollowedChain]
) -> list[HealthProblem]:
    waiting: dict[str, int] = {}
    workers: WorkerFacts | None = None
    try:
        waiting = await _count_waiting_without_workers(ctx, live)
        workers = WorkerFacts(
            await ctx.queue.consumers() or set(), await ctx.queue.lost_consumers() or set()
        )
    except QueueUnavailable as error:
        _log.warning("queue_unavailable", error=repr(error))
    facts = HealthFacts(
        failed=totals["failed"],
        outbox_failed=totals["outbox_failed"],
        batches_failed=totals["batches_failed"],
        paused=totals["paused"],
        waiting_without_workers=waiting,
        workers=workers,
        chains=chains,
    )
    return find_problems(facts)


async def _count_waiting_without_workers(ctx: Context, live: list[LiveTasks]) -> dict[str, int]:
    """Count the queued tasks of runtimes without workers; a queue may not know its workers."""
    waiting: dict[str, int] = {}
    for tasks in live:
        if not tasks.queued or tasks.runtime == "dispatcher":
            continue
        consumers = await ctx.queue.consumers(ctx.runtimes.queue_of(tasks.runtime))
        if consumers is not None and not consumers:
            waiting[tasks.runtime] = tasks.queued
    return waiting


@router.get("/failures")
async def list_failures(user: CallerDep, ctx: ContextDep, dag: Name | None = None) -> FailureGroups:
    """Group the tasks that failed permanently by job and error, newest first."""
    async with ctx.pool.connection() as conn:
        return FailureGroups(items=await overview.list_failures(conn, user.org_id, dag))
