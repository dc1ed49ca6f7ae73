"""Tasks."""

from dataclasses import fields
from datetime import datetime
from typing import Annotated
from uuid import UUID

import structlog
from fastapi import APIRouter, Depends

from trace_etl.api.body import Name
from trace_etl.api.user.tasks import CancelReply, TaskDetail, TaskList, TaskSummary
from trace_etl.dispatcher.user_api.context import CallerDep, Context, ContextDep
from trace_etl.dispatcher.user_api.listing import ListingDep
from trace_etl.model.errors import Conflict
from trace_etl.policy.waiting_reasons import TaskFacts, explain_task
from trace_etl.queues.queue import QueueUnavailable
from trace_etl.state.db.pool import transaction
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.flow import loads
from trace_etl.state.routing import outbox
from trace_etl.state.tasks import task_counts, task_queries
from trace_etl.state.tasks.task_queries import TaskFilter, TaskWithFacts

router = APIRouter(prefix="/v1", tags=["tasks"])
_log = structlog.stdlib.get_logger()
_TASK_FACTS = {field.name for field in fields(TaskFacts)} - {"runtime_has_workers"}


@router.get("/tasks")
async def list_tasks(
    ctx: ContextDep, listing: ListingDep, filters: Annotated[TaskFilter, Depends()]
) -> TaskList:
    """List tasks, newest first."""
    tasks = await listing.fetch(task_queries.list_tasks, filters, datetime, UUID)
    return listing.reply(TaskList, await _explain(ctx, tasks), lambda t: (t.created_at, t.task_id))


@router.get("/tasks/summary")
async def summarise(user: CallerDep, ctx: ContextDep, dag: Name | None = None) -> TaskSummary:
    """Count tasks by job and status."""
    async with snapshot(ctx.pool) as conn:
        pending = await outbox.count_unrouted_events(conn, user.org_id)
        pending += await loads.count_deferred_events(conn, user.org_id)
        jobs = await task_counts.count_tasks(conn, user.org_id, dag)
    return TaskSummary(jobs=jobs, pending_events=pending)


@router.get("/tasks/{task_id}")
async def get_task(task_id: UUID, user: CallerDep, ctx: ContextDep) -> TaskDetail:
    """Show one task with its ended attempts."""
    async with ctx.pool.connection() as conn:
        stored = await task_queries.get_task(conn, user.org_id, task_id)
        attempts = await task_queries.list_attempts(conn, task_id)
    (task,) = await _explain(ctx, [stored])
    return TaskDetail(**dict(task), attempts=attempts)


@router.post("/tasks/{task_id}/cancel")
async def cancel_task(task_id: UUID, user: CallerDep, ctx: ContextDep) -> CancelReply:
    """Cancel a waiting task, or ask a running one to stop."""
    async with transaction(ctx.pool) as conn:
        status = await task_queries.cancel_task(conn, user.org_id, task_id)
        if status is None:
            task = await task_queries.get_task(conn, user.org_id, task_id)
            if task.status != "Canceled":
                raise Conflict(f"the task is {task.status} already")
            status = task.status
    return CancelReply.model_validate({"task_id": task_id, "status": status})


async def _explain(ctx: Context, tasks: list[TaskWithFacts]) -> list[TaskWithFacts]:
    """Fill in why each task is not running."""
    has_workers = await _find_runtimes_with_workers(ctx, tasks)
    return [_explain_task(task, has_workers.get(task.runtime)) for task in tasks]


def _explain_task(task: TaskWithFacts, runtime_has_workers: bool | None) -> TaskWithFacts:
    stored_facts = task.model_dump(include=_TASK_FACTS)
    facts = TaskFacts(**stored_facts, runtime_has_workers=runtime_has_workers)
    return task.model_copy(update={"reason": explain_task(facts)})


async def _find_runtimes_with_workers(ctx: Context, tasks: list[TaskWithFacts]) -> dict[str, bool]:
    """Ask the queue which runtimes of the queued tasks have workers. Unknown ones are left out."""
    has_workers = {"dispatcher": True}
    try:
        for runtime in sorted(
            {t.runtime for t in tasks if t.status == "Queued"} - has_workers.keys()
        ):
            consumers = await ctx.queue.consumers(runtime)
            if consumers is not None:
                has_workers[runtime] = bool(consumers)
    except QueueUnavailable as error:
        _log.warning("queue_unavailable", error=repr(error))
    return has_workers
