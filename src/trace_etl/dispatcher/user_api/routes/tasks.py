"""Tasks, and what waits in the outbox."""

from dataclasses import asdict
from uuid import UUID

import structlog
from fastapi import APIRouter

from trace_etl.api.body import Name
from trace_etl.api.user import outbox as outbox_api
from trace_etl.api.user import tasks as wire
from trace_etl.dispatcher.user_api.context import CallerDep, Context, ContextDep
from trace_etl.dispatcher.user_api.pages import PageDep, newest
from trace_etl.model.errors import Conflict
from trace_etl.policy.waiting_reasons import Facts, reason
from trace_etl.queues.pgqueue import CONNECTION_LOST
from trace_etl.state.db.pool import transaction
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.flow import loads
from trace_etl.state.routing import outbox
from trace_etl.state.tasks import task_counts, task_queries
from trace_etl.state.tasks.task_queries import TaskFilter, TaskView

router = APIRouter(prefix="/v1", tags=["tasks"])
_log = structlog.stdlib.get_logger()


@router.get("/tasks")
async def list_tasks(
    user: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    dag: Name | None = None,
    job: Name | None = None,
    status: wire.Status | None = None,
    operator: Name | None = None,
    runtime: Name | None = None,
    worker: Name | None = None,
) -> wire.TaskList:
    """Tasks, newest first."""
    which = TaskFilter(dag, job, status, operator, runtime, worker)
    async with ctx.pool.connection() as conn:
        found = await task_queries.listing(
            conn, user.org_id, which, after=newest(page), limit=page.fetch
        )
    items, following = page.cut(found, lambda view: (view.created_at, view.task_id))
    served = await _served(ctx, items)
    return wire.TaskList(
        items=[wire.TaskItem.model_validate(_item(task, served)) for task in items],
        next=following,
    )


@router.get("/tasks/summary")
async def summarise(user: CallerDep, ctx: ContextDep, dag: Name | None = None) -> wire.TaskSummary:
    """Tasks by job and status."""
    async with snapshot(ctx.pool) as conn:
        pending = await outbox.unrouted(conn, user.org_id)
        pending += await loads.deferred(conn, user.org_id)
        rows = await task_counts.summary(conn, user.org_id, dag)
    return wire.TaskSummary(
        jobs=[
            wire.JobTaskCounts(
                dag=r[0],
                job=r[1],
                queued=r[2],
                running=r[3],
                completed=r[4],
                failed=r[5],
                canceled=r[6],
            )
            for r in rows
        ],
        pending_events=pending,
    )


@router.get("/tasks/{task_id}")
async def get_task(task_id: UUID, user: CallerDep, ctx: ContextDep) -> wire.TaskDetail:
    """One task, with every attempt that ended."""
    async with ctx.pool.connection() as conn:
        view = await task_queries.get(conn, user.org_id, task_id)
        ended = await task_queries.attempts(conn, task_id)
    served = await _served(ctx, [view])
    return wire.TaskDetail.model_validate(
        {**_item(view, served), "attempts": [asdict(attempt) for attempt in ended]}
    )


@router.post("/tasks/{task_id}/cancel")
async def cancel_task(task_id: UUID, user: CallerDep, ctx: ContextDep) -> wire.CancelReply:
    """Cancel a waiting task, or ask a running one to stop."""
    async with transaction(ctx.pool) as conn:
        status = await task_queries.cancel(conn, user.org_id, task_id)
        if status is None:
            view = await task_queries.get(conn, user.org_id, task_id)
            if view.status != "Canceled":
                raise Conflict(f"the task is {view.status} already")
            status = view.status
    return wire.CancelReply.model_validate({"task_id": task_id, "status": status})


@router.get("/outbox")
async def list_outbox(
    user: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    failed: bool | None = None,
    kind: Name | None = None,
) -> outbox_api.OutboxList:
    """Side effects that are still to be performed, or that failed for good, oldest first."""
    (after,) = page.after(int) or (-1,)
    async with ctx.pool.connection() as conn:
        found = await outbox.listing(
            conn, user.org_id, failed=failed, kind=kind, after=after, limit=page.fetch
        )
    items, following = page.cut(found, lambda row: (row.outbox_id,))
    return outbox_api.OutboxList(
        items=[outbox_api.OutboxItem.model_validate(asdict(row)) for row in items], next=following
    )


@router.post("/outbox/replay")
async def replay_outbox(user: CallerDep, ctx: ContextDep) -> outbox_api.ReplayReply:
    """Give every side effect that failed for good a new set of tries."""
    async with transaction(ctx.pool) as conn:
        replayed = await outbox.replay(conn, user.org_id)
    ctx.wake.outbox.set()
    return outbox_api.ReplayReply(replayed=replayed)


async def _served(ctx: Context, views: list[TaskView]) -> dict[str, bool | None]:
    """Whether some worker serves the runtimes that have waiting tasks here; None: nobody knows."""
    waiting = {v.runtime for v in views if v.status == "Queued"} - {"dispatcher"}
    served: dict[str, bool | None] = {"dispatcher": True}
    try:
        return served | {r: bool(await ctx.queue.consumers(r)) for r in sorted(waiting)}
    except CONNECTION_LOST as error:
        _log.warning("queue_unavailable", error=repr(error))
        return served


def _item(view: TaskView, served: dict[str, bool | None]) -> dict[str, object]:
    facts = Facts(
        status=view.status,
        runtime=view.runtime,
        queued_at=view.queued_at,
        retry_at=view.retry_at,
        attempt=view.attempt,
        max_attempts=view.max_attempts,
        cancel_requested=view.cancel_requested,
        paused_at=view.paused_at,
        paused_by=view.paused_by,
        max_concurrency=view.max_concurrency,
        running_in_job=view.running_in_job,
        operator_cap=view.operator_cap,
        running_of_operator=view.running_of_operator,
        runtime_has_workers=served.get(view.runtime),
        error_message=view.error_message,
    )
    return {**asdict(view), "cursor": view.cursor_value, "reason": reason(facts)}
