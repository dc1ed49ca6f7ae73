"""Jobs."""

from datetime import datetime
from typing import Any
from uuid import UUID

from trace_etl.api.body import ListReply, Reply
from trace_etl.model.dag import Activation, Priority, SourceKind
from trace_etl.model.waiting import UpstreamJob


class JobItem(Reply):
    dag: str
    job: str
    activation: Activation
    operator: str
    runtime: str
    source_kind: SourceKind | None
    schedule: str | None
    source_options: dict[str, Any] | None = None
    paused_by: str | None
    bulk_paused_by: str | None = None
    """The user or queue that pauses its bulk tasks, even if its normal tasks are paused too."""
    failed: int
    """Tasks of the current definition that failed permanently. `trace retry` runs them again."""


class JobList(ListReply[JobItem]):
    """One page of jobs."""


class JobInputItem(Reply):
    name: str
    dataset_uuid: UUID
    dag: str
    job: str
    output: str
    where: dict[str, Any] | None


class JobOutputItem(Reply):
    name: str
    dataset_uuid: UUID
    dataset_version: UUID
    published: str | None


class UpstreamWork(Reply, UpstreamJob):
    """An upstream job with unfinished or failed tasks. `distance` 1 is a direct input."""

    distance: int


class JobFailure(Reply):
    """The last task that failed permanently."""

    task_id: UUID
    partition_key: str | None
    error_code: str | None
    error_message: str | None
    finished_at: datetime | None


class JobDetail(JobItem):
    revision_id: UUID
    execution_strategy: str
    update_strategy: str
    config: dict[str, Any]
    max_attempts: int
    timeout_seconds: int
    heartbeat_timeout_seconds: int
    priority: Priority
    max_concurrency: int | None
    max_queue_depth: int | None
    max_queue_age: int | None
    paused_at: datetime | None
    queued: int
    running: int
    retrying: int
    """Failed tasks that run again."""
    last_failure: JobFailure | None
    oldest_queued_at: datetime | None
    inputs: list[JobInputItem]
    outputs: list[JobOutputItem]
    upstream: list[UpstreamWork]
    reason: str | None
    """Why the job runs no tasks; null if it runs some, or if no upstream job has work."""
