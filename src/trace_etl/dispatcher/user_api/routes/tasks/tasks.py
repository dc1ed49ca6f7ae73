"""Tasks."""

from collections import Counter
from datetime import datetime
from typing import Annotated
from uuid import UUID

import structlog
from fastapi import APIRouter, Depends, Query

from trace_etl.api.body import Name
from trace_etl.api.user.tasks.cancellations import CancelRequest, CancelTasksReply
from trace_etl.api.user.tasks.retries import (
    MAX_LISTED,
    FailedTask,
    RetryGroup,
    RetryReply,
    RetryRequest,
    SkippedTask,
)
from trace_etl.api.user.tasks.tasks import (
    MAX_LOG_WINDOW,
    CancelReply,
    LogReply,
    TaskDetail,
    TaskList,
    TaskSummary,
)
from trace_etl.dispatcher.user_api.context import CallerDep, Context, ContextDep
from trace_etl.dispatcher.user_api.listing import ListingDep
from trace_etl.model.errors import Conflict
from trace_etl.policy.waiting_reasons import explain_task
from trace_etl.queues.queue import QueueUnavailable
from trace_etl.state.db.pool import Conn, transaction
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.flow import loads
from trace_etl.state.routing import outbox
from trace_etl.state.tasks import attempt_logs, cancellations, retries, task_counts, task_queries
from trace_etl.state.tasks.task_queries import TaskFilter, TaskWithFacts

router = APIRouter(prefix="/v1", tags=["tasks"])
_log = structlog.stdlib.get_logger()


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
    """Show one task with its payload, the definition that it runs, and its ended attempts."""
    async with snapshot(ctx.pool) as conn:
        stored = await task_queries.get_task(conn, user.org_id, task_id)
        payload = await task_queries.get_payload(conn, task_id)
        attempts = await task_queries.list_attempts(conn, task_id)
    (task,) = await _explain(ctx, [stored])
    return TaskDetail(**dict(task), **payload, attempts=attempts)


@router.get("/tasks/{task_id}/logs")
async def read_logs(
    task_id: UUID,
    user: CallerDep,
    ctx: ContextDep,
    attempt: Annotated[int | None, Query(ge=1, description="Default: the last one.")] = None,
    start: Annotated[int, Query(ge=0, le=2**31 - 1, description="Position to read from.")] = 0,
    tail: Annotated[
        int | None,
        Query(
            ge=4, le=MAX_LOG_WINDOW, description="Read the last bytes instead, at most this many."
        ),
    ] = None,
    before: Annotated[
        int | None,
        Query(ge=0, le=2**31 - 1, description="With `tail`: the last bytes before this position."),
    ] = None,
) -> LogReply:
    """Read a window of the output of an attempt: of its function, and the error of its operator.

    An answer has at most 1 MiB.
    """
    async with snapshot(ctx.pool) as conn:
        task = await task_queries.get_task(conn, user.org_id, task_id)
        chosen = attempt or task.attempt
        size = await attempt_logs.get_size(conn, task_id, chosen)
        end = start + MAX_LOG_WINDOW
        if tail is not None:
            end = size if before is None else min(before, size)
            start = max(0, end - tail)
        parts = await attempt_logs.list_parts(conn, task_id, chosen, start=start, end=end)
    end = parts[-1].position + len(parts[-1].text.encode()) if parts else start
    return LogReply(
        size=size,
        first=parts[0].position if parts else start,
        task_id=task_id,
        attempt=chosen,
        last_attempt=task.attempt,
        status=task.status,
        parts=parts,
        next_start=end,
    )


@router.post("/tasks/{task_id}/cancel")
async def cancel_task(task_id: UUID, user: CallerDep, ctx: ContextDep) -> CancelReply:
    """Cancel a waiting task, or ask a running one to stop."""
    async with transaction(ctx.pool) as conn:
        status = await cancellations.cancel_task(conn, user.org_id, task_id)
        if status is None:
            task = await task_queries.get_task(conn, user.org_id, task_id)
            if task.status != "Canceled":
                raise Conflict(f"the task is {task.status} already")
            status = task.status
    return CancelReply.model_validate({"task_id": task_id, "status": status})


@router.post("/tasks/cancel")
async def cancel_tasks(body: CancelRequest, user: CallerDep, ctx: ContextDep) -> CancelTasksReply:
    """Cancel waiting tasks and ask running ones to stop, all in one transaction."""
    change = cancellations.preview if body.dry_run else cancellations.cancel
    async with transaction(ctx.pool) as conn:
        skipped = await _explain_not_canceled(conn, user.org_id, body)
        groups = await change(conn, user.org_id, body)
    stopping = sum(group.tasks for group in groups if group.status == "Running")
    return CancelTasksReply(
        dry_run=body.dry_run,
        canceled=sum(group.tasks for group in groups) - stopping,
        stopping=stopping,
        groups=groups,
        skipped=skipped[:MAX_LISTED],
        skipped_count=len(skipped),
    )


async def _explain_not_canceled(conn: Conn, org_id: UUID, body: CancelRequest) -> list[SkippedTask]:
    """Say why named tasks are not canceled. Raises NotFound."""
    skipped: list[SkippedTask] = []
    for task_id in dict.fromkeys(body.task_ids or ()):
        task = await task_queries.get_task(conn, org_id, task_id)
        if task.cancel_requested and task.status == "Running":
            reason = "it is asked to stop already"
        elif task.status not in ("Queued", "Running") and task.retry_at is None:
            reason = f"it is {task.status}"
        elif body.is_chosen(task.dag, task.job, task.status, task.error_code):
            continue
        else:
            reason = "it has another status or error, or belongs to another job"
        skipped.append(SkippedTask(task_id=task_id, reason=reason))
    return skipped


@router.post("/tasks/retry")
async def retry_tasks(body: RetryRequest, user: CallerDep, ctx: ContextDep) -> RetryReply:
    """Retry failed tasks, all in one transaction. Each gets as many attempts as a new task."""
    async with transaction(ctx.pool) as conn:
        failed = await retries.find_failed(conn, user.org_id, body)
        skipped = await _explain_skipped(conn, user.org_id, body, failed)
        chosen = [task for task in failed if not task.is_retired]
        if not body.dry_run:
            retried = await retries.retry(conn, [task.task_id for task in chosen])
            chosen = [task for task in chosen if task.task_id in retried]
    ctx.wake.retries.set()
    ctx.wake.backfills.set()  # failed backfills of these tasks run again
    return RetryReply(
        dry_run=body.dry_run,
        retried=len(chosen),
        groups=_group_by_error(chosen),
        tasks=chosen[:MAX_LISTED],
        skipped=skipped[:MAX_LISTED],
        skipped_count=len(skipped),
    )


async def _explain_skipped(
    conn: Conn, org_id: UUID, body: RetryRequest, failed: list[FailedTask]
) -> list[SkippedTask]:
    """Say why tasks are not retried: retired ones, and named ones that did not fail. Raises NotFound."""
    reason = "its DAG no longer has this job, or the job has another definition now"
    skipped = [SkippedTask(task_id=t.task_id, reason=reason) for t in failed if t.is_retired]
    found = {task.task_id for task in failed}
    for task_id in dict.fromkeys(body.task_ids or ()):
        if task_id not in found:
            task = await task_queries.get_task(conn, org_id, task_id)
            reason = "it failed with another error, or belongs to another job"
            if task.status != "Failed":
                reason = f"it is {task.status}"
            skipped.append(SkippedTask(task_id=task_id, reason=reason))
    return skipped


def _group_by_error(tasks: list[FailedTask]) -> list[RetryGroup]:
    counts = Counter((task.dag, task.job, task.error_code) for task in tasks)
    return [
        RetryGroup(dag=dag, job=job, error_code=error_code, tasks=count)
        for (dag, job, error_code), count in counts.items()
    ]


async def _explain(ctx: Context, tasks: list[TaskWithFacts]) -> list[TaskWithFacts]:
    """Fill in why each task is not running."""
    has_workers = await _find_runtimes_with_workers(ctx, tasks)
    return [
        task.model_copy(update={"reason": explain_task(task, has_workers.get(task.runtime))})
        for task in tasks
    ]


async def _find_runtimes_with_workers(ctx: Context, tasks: list[TaskWithFacts]) -> dict[str, bool]:
    """Ask the queue which runtimes of the queued tasks have workers. Unknown ones are left out."""
    has_workers = {"dispatcher": True}
    try:
        for runtime in sorted(
            {t.runtime for t in tasks if t.status == "Queued"} - has_workers.keys()
        ):
            consumers = await ctx.queue.consumers(ctx.runtimes.queue_of(runtime))
            if consumers is not None:
                has_workers[runtime] = bool(consumers)
    except QueueUnavailable as error:
        _log.warning("queue_unavailable", error=repr(error))
    return has_workers
