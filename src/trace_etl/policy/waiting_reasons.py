"""Why a task, or a whole job, is not running: one place, in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True)
class TaskFacts:
    """What the answer is made from."""

    status: str
    runtime: str
    queued_at: datetime
    retry_at: datetime | None
    attempt: int
    max_attempts: int
    cancel_requested: bool
    paused_at: datetime | None
    paused_by: str | None
    max_concurrency: int | None
    running_in_job: int
    runtime_has_workers: bool | None
    """None: the queue, which knows, does not answer."""
    error_message: str | None
    operator_cap: int | None = None
    running_of_operator: int = 0


def explain_task(facts: TaskFacts) -> str | None:
    """Why this task is not running; None when it is, or when it has ended well."""
    if facts.status == "Failed":
        return _failed(facts)
    if facts.status == "Running" and facts.cancel_requested:
        return "running, asked to stop"
    if facts.status != "Queued":
        return None
    since = f"queued since {_utc(facts.queued_at)}"
    if facts.paused_at is not None:
        return f"paused by {facts.paused_by} since {_utc(facts.paused_at)}"
    if facts.max_concurrency is not None and facts.running_in_job >= facts.max_concurrency:
        return f"{since}: the job's max_concurrency of {facts.max_concurrency} is reached"
    if facts.operator_cap is not None and facts.running_of_operator >= facts.operator_cap:
        return f"{since}: the operator's cap of {facts.operator_cap} is reached, over all jobs"
    if facts.runtime_has_workers is None:
        return f"{since}: the queue does not answer, so no worker can be woken"
    if not facts.runtime_has_workers:
        return f"{since}: no worker for runtime {facts.runtime}"
    return f"{since}: waiting for a free worker slot"


def _failed(facts: TaskFacts) -> str:
    why = facts.error_message or "no reason was given"
    if facts.retry_at is None:
        return f"failed for good at attempt {facts.attempt} of {facts.max_attempts}: {why}"
    return f"retry at {_utc(facts.retry_at)} (attempt {facts.attempt} failed: {why})"


@dataclass(frozen=True)
class UpstreamJob:
    """A job above that has work, or trouble."""

    job: str
    queued: int
    running: int
    retrying: int
    failed: int
    paused_by: str | None


def explain_job(
    *, queued: int, running: int, paused_by: str | None, above: Sequence[UpstreamJob]
) -> str | None:
    """Why a job runs nothing; None when it does, or when nothing new is under way above it."""
    if running:
        return None
    if paused_by is not None:
        return f"paused by {paused_by}"
    if queued:
        return f"{_tasks(queued)} queued: `trace tasks` says what each waits for"
    if not above:
        return None
    return "waiting for upstream: " + "; ".join(_work(job) for job in above)


def _work(job: UpstreamJob) -> str:
    parts = [
        f"{_tasks(count)} {word}"
        for count, word in (
            (job.running, "running"),
            (job.queued, "queued"),
            (job.retrying, "to be tried again"),
            (job.failed, "failed for good"),
        )
        if count
    ]
    paused = [f"paused by {job.paused_by}"] if job.paused_by else []
    return f"{job.job} ({', '.join([*parts, *paused])})"


def _tasks(count: int) -> str:
    return f"{count:,} task" if count == 1 else f"{count:,} tasks"


def _utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
