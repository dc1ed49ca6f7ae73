"""Tasks and their attempts."""

from datetime import datetime
from typing import Any
from uuid import UUID

from trace_etl.api.body import ListReply, Reply
from trace_etl.api.task.payload import TaskParameters
from trace_etl.model.task import TaskStatus
from trace_etl.model.waiting import TaskState


class TaskItem(Reply, TaskState):
    task_id: UUID
    dag: str
    job: str
    operator: str
    partition_key: str | None
    cursor: int | None
    worker_id: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error_code: str | None
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


class TaskInputItem(Reply):
    """An input of the definition that a task runs."""

    name: str
    dag: str | None
    """The producer; null for a buffered dataset, which may have several."""
    job: str | None
    output: str | None
    dataset: str | None
    """The published name."""
    where: dict[str, Any] | None


class TaskDefinition(Reply):
    """The definition that a task runs. A deploy may have replaced it since."""

    revision_id: UUID
    is_current: bool
    dag_version: UUID | None
    """The newest version of the DAG that has it."""
    config: dict[str, Any]
    """The config of the operator, such as its SQL. Secrets are placeholders."""
    execution_strategy: str
    update_strategy: str
    partition_by: str | None
    inputs: list[TaskInputItem]
    secrets: list[str]
    """The names of the secrets that the job uses, never their values."""
    bundle: str | None
    """The bundle of its function."""


class TaskDetail(TaskItem):
    attempts: list[AttemptItem]
    start: int | None
    """The first block of its scope."""
    end: int | None
    parameters: TaskParameters | None
    """Values of the event that started it, such as the payload of a webhook delivery."""
    invalidation_id: UUID | None
    """The invalidation that it processes."""
    bulk: bool
    """Whether it waits behind normal tasks, as backfills and rebuilds do."""
    definition: TaskDefinition


class LogPart(Reply):
    """A part of the output of an attempt."""

    position: int
    """The number of bytes before the part."""
    text: str
    logged_at: datetime


MAX_LOG_WINDOW = 1024 * 1024


class LogReply(Reply):
    """A window of the output of an attempt."""

    task_id: UUID
    attempt: int
    last_attempt: int
    status: TaskStatus
    """The state of the task."""
    size: int
    """Bytes of the whole output so far."""
    parts: list[LogPart]
    first: int
    """Pass it as `before`, with `tail`, to read what comes before. 0: this is the beginning."""
    next_start: int
    """Pass it as `start` to read on."""


class CancelReply(Reply):
    task_id: UUID
    status: TaskStatus
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
