"""The state of everything in one reply."""

from datetime import datetime
from uuid import UUID

from trace_etl.api.body import Reply
from trace_etl.model.health import ChainFacts, HealthProblem


class FollowedChain(Reply, ChainFacts):
    """An always_on source, and how far it is."""

    cursor: int | None
    """The newest block or position that it published; null if it published none."""
    advanced_at: datetime | None
    """When it published that position."""
    head: int | None
    """The head of the chain, as the follower last saw it; null if it has not reported one."""
    head_at: datetime | None
    """The time in the header of the head."""
    position: int | None
    """The last block that it wrote. A paused follower writes blocks and does not publish them."""
    reported_at: datetime | None
    """When it last reported the head, usually a few seconds ago."""
    reorganisations: int
    """Reorganisations in the last 24 hours."""
    worker_id: str | None
    reason: str | None = None
    """The last error, if an attempt failed."""


class MinuteItem(Reply):
    """The tasks that ended in one minute."""

    minute: datetime
    completed: int
    failed: int


class Overview(Reply):
    is_healthy: bool
    problems: list[HealthProblem]
    """Why it is not healthy: failures, dead workers, runtimes without workers, stopped or late chains."""
    dags: int
    jobs: int
    queued: int
    running: int
    retrying: int
    """Failed tasks that run again."""
    failed: int
    """Tasks of current definitions that failed permanently."""
    paused: int
    """Jobs that are paused, by users or by backpressure."""
    completed_last_hour: int
    failed_last_hour: int
    outbox_failed: int
    batches_failed: int
    minutes: list[MinuteItem]
    """The last 60 minutes with ended tasks, oldest first. Minutes without one are left out."""
    chains: list[FollowedChain]


class FailureGroup(Reply):
    """Tasks of one job that failed permanently with one error."""

    dag: str
    job: str
    error_code: str | None
    tasks: int
    newest_at: datetime | None
    task_id: UUID
    """The task that failed last."""
    partition_key: str | None
    error_message: str | None


class FailureGroups(Reply):
    items: list[FailureGroup]
