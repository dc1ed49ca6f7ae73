"""Tasks and their attempts."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from trace_etl.api.body import ListReply, Reply

Status = Literal["Queued", "Running", "Completed", "Failed", "Canceled"]


class TaskItem(Reply):
    task_id: UUID
    dag: str
    job: str
    operator: str
    runtime: str
    status: Status
    attempt: int
    max_attempts: int
    partition_key: str | None
    cursor: int | None
    worker_id: str | None
    created_at: datetime
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    retry_at: datetime | None
    error_code: str | None
    error_message: str | None
    reason: str | None
    """A sentence that says why the task is not running."""


class TaskList(ListReply[TaskItem]):
    """One page of tasks."""


class OutputItem(Reply):
    """An output that an attempt reported with its completion."""

    output_index: int | None = None
    dataset_uuid: UUID
    dataset_version: UUID | None = None
    location: str
    cursor: int | None = None
    partition_key: str | None = None
    row_count: int | None = None
    byte_count: int | None = None


class AttemptItem(Reply):
    attempt: int
    worker_id: str | None
    started_at: datetime | None
    ended_at: datetime
    outcome: str
    cause: str | None
    error_code: str | None
    error_message: str | None
    isolation: str | None = None
    """How untrusted code was isolated; null for code of the platform, and if the sandbox did not start."""
    outputs: list[OutputItem] = []


class TaskDetail(TaskItem):
    attempts: list[AttemptItem]


class LogPart(Reply):
    """A part of the output of an attempt."""

    position: int
    """The number of bytes before the part."""
    text: str
    logged_at: datetime


class LogReply(Reply):
    """Output of an attempt, from a position on."""

    task_id: UUID
    attempt: int
    last_attempt: int
    status: Status
    """The state of the task."""
    parts: list[LogPart]
    next_start: int
    """Pass it as `start` to read on."""


class CancelReply(Reply):
    task_id: UUID
    status: Status
    """Running: the worker has been asked to stop."""


class JobTaskCounts(Reply):
    dag: str
    job: str
    queued: int
    running: int
    completed: int
    failed: int
    canceled: int


class TaskSummary(Reply):
    jobs: list[JobTaskCounts]
    pending_events: int
    """Events accepted but not routed yet: tasks may still appear."""
