"""Explain why a task or a job is not running."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from trace_etl.model.waiting import TaskState, UpstreamJob


@dataclass
class TaskFacts(TaskState):
    """The state of a task and of its job, from which the explanation is made."""

    cancel_requested: bool
    paused_at: datetime | None
    paused_by: str | None
    max_concurrency: int | None
    running_in_job: int
    operator_cap: int | None
    running_of_operator: int
    held_by: str | None
    """The failed data check that keeps the task from starting."""


def explain_task(facts: TaskFacts, runtime_has_workers: bool | None) -> str | None:
    """Return why a task is not running; None: it is running, completed or canceled.

    `runtime_has_workers` is None if the queue does not answer.
    """
    if facts.status == "Failed":
        return _explain_failure(facts)
    if facts.status == "Running" and facts.cancel_requested:
        return "running, cancellation requested"
    if facts.status != "Queued":
        return None
    since = f"queued since {_format_utc(facts.queued_at)}"
    if facts.paused_at is not None:
        return f"paused by {facts.paused_by} since {_format_utc(facts.paused_at)}"
    if facts.held_by is not None:
        return f"{since}: {facts.held_by}; replace the partition, or accept it (trace accept)"
    if facts.max_concurrency is not None and facts.running_in_job >= facts.max_concurrency:
        return f"{since}: the job's max_concurrency of {facts.max_concurrency} is reached"
    if facts.operator_cap is not None and facts.running_of_operator >= facts.operator_cap:
        return f"{since}: the operator's cap of {facts.operator_cap} over all jobs is reached"
    if runtime_has_workers is None:
        return f"{since}: the queue does not answer, so no worker can be woken"
    if not runtime_has_workers:
        return f"{since}: no worker is ready for runtime {facts.runtime}"
    return f"{since}: waiting for a free worker slot"


def _explain_failure(facts: TaskFacts) -> str:
    reason = facts.error_message or "the worker gave no reason"
    if facts.retry_at is None:
        return f"failed permanently at attempt {facts.attempt} of {facts.max_attempts}: {reason}"
    return f"retry at {_format_utc(facts.retry_at)} (attempt {facts.attempt} failed: {reason})"


def explain_job(
    dag: str, *, queued: int, running: int, paused_by: str | None, upstream: Sequence[UpstreamJob]
) -> str | None:
    """Return why a job of a DAG runs no task; None: it runs a task, or no upstream job has work."""
    if running:
        return None
    if paused_by is not None:
        return f"paused by {paused_by}"
    if queued:
        return f"{_count_tasks(queued)} queued: `trace tasks` shows what each one waits for"
    if not upstream:
        return None
    return "waiting for upstream: " + "; ".join(_describe_work(dag, job) for job in upstream)


def _describe_work(dag: str, job: UpstreamJob) -> str:
    name = job.job if job.dag == dag else f"{job.dag}.{job.job}"
    parts = [
        f"{_count_tasks(count)} {state}"
        for count, state in (
            (job.running, "running"),
            (job.queued, "queued"),
            (job.retrying, "to be retried"),
            (job.failed, "failed permanently"),
        )
        if count
    ]
    paused = [f"paused by {job.paused_by}"] if job.paused_by else []
    return f"{name} ({', '.join([*parts, *paused])})"


def _count_tasks(count: int) -> str:
    return f"{count:,} task" if count == 1 else f"{count:,} tasks"


def _format_utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
