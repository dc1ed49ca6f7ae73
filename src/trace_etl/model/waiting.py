"""What the API shows of a task or job, and what explains why it waits."""

from dataclasses import dataclass
from datetime import datetime

from trace_etl.model.task import TaskStatus


@dataclass
class TaskState:
    """The state of a task."""

    status: TaskStatus
    runtime: str
    queued_at: datetime
    retry_at: datetime | None
    attempt: int
    max_attempts: int
    error_message: str | None


@dataclass
class UpstreamJob:
    """A job upstream that has open tasks, failed tasks or a pause."""

    dag: str
    job: str
    queued: int
    running: int
    retrying: int
    failed: int
    paused_by: str | None
