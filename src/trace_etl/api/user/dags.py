"""The user API: DAGs, triggers, tasks, datasets."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import StringConstraints, model_validator

from trace_etl.api.body import Block, Reply, Request
from trace_etl.api.user.jobs import JobItem
from trace_etl.api.user.rollouts import DagPlan

Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00]*$")]


class PlanRequest(Request):
    text: Annotated[str, StringConstraints(max_length=1024 * 1024, pattern=r"^[^\x00]*$")]
    filename: Annotated[str, StringConstraints(max_length=1024)] = "dag.yaml"


class ColumnItem(Request):
    name: Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00]*$")]
    type: Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
    """As Spark writes it."""


class OutputColumns(Request):
    job: Name
    output: Name
    columns: list[ColumnItem]


class DeployRequest(PlanRequest):
    base_version: UUID | None = None
    """The version that the plan was made for; null: there was no such DAG. Not given: whatever the
    DAG is at when the request arrives. When it is another by then: 409 `deploy_conflict`."""
    columns: list[OutputColumns] = []
    """What Spark's analyser found the columns of outputs to be; kept with their generations."""


class DeployedJob(Reply):
    name: str
    operator: str
    runtime: str
    activation: str


class DeployedDataset(Reply):
    job: str
    output: str
    dataset_uuid: UUID
    dataset_version: UUID
    """What readers see."""
    building_version: UUID | None
    """What is being built beside it, and becomes current when the rollout is complete."""
    published: str | None
    columns: list[dict[str, str]] | None
    """What the deploy found its columns to be; null: nobody looked."""


class DeployReply(Reply):
    dag: str
    dag_version: UUID
    changed: bool
    is_building: bool
    """Whether new generations are built beside the old: `GET /v1/dags/{name}/rollout` tells."""
    jobs: list[DeployedJob]
    datasets: list[DeployedDataset]
    plan: DagPlan
    """What was done."""


class DagItem(Reply):
    dag: str
    dag_version: UUID
    deployed_at: datetime
    jobs: int


class DagList(Reply):
    items: list[DagItem]
    next: str | None


class DagDetail(DagItem):
    text: str
    job_list: list[JobItem]


class TriggerRequest(Request):
    dag: Name
    job: Name
    start: Block
    end: Block

    @model_validator(mode="after")
    def _is_a_range(self) -> "TriggerRequest":
        if self.end < self.start:
            raise ValueError(f"`end` ({self.end}) must not be before `start` ({self.start})")
        return self


class TriggerReply(Reply):
    event_id: UUID
    dag: str
    job: str
    partition_key: str
    created: bool
    """False: the same range was triggered before, and nothing new was asked for."""
    deferred_by: str | None = None
    """Who paused the source: the event is kept, and routed when the source goes on."""


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
    """Why it is not running, in words."""


class TaskList(Reply):
    items: list[TaskItem]
    next: str | None
    """Pass as `after` for the next page; null on the last."""


class AttemptItem(Reply):
    attempt: int
    worker_id: str | None
    started_at: datetime | None
    ended_at: datetime
    outcome: str
    cause: str | None
    error_code: str | None
    error_message: str | None


class TaskDetail(TaskItem):
    attempts: list[AttemptItem]


class CancelReply(Reply):
    task_id: UUID
    status: Status
    """Running: the worker has been asked to stop."""


class JobTally(Reply):
    dag: str
    job: str
    queued: int
    running: int
    completed: int
    failed: int
    canceled: int


class TaskSummary(Reply):
    jobs: list[JobTally]
    pending_events: int
    """Events accepted but not routed yet: tasks may still appear."""


class DatasetItem(Reply):
    name: str | None
    dag: str
    job: str
    output: str
    dataset_uuid: UUID
    dataset_version: UUID
    partitions: int
    row_count: int
    byte_count: int
    range_start: int | None
    range_end: int | None
    updated_at: datetime | None
    write_mode: str | None = None
    """Null: not published."""
    producers: list[str] = []
    """As `dag.job.output`; several write a buffered dataset."""


class DatasetList(Reply):
    items: list[DatasetItem]
    next: str | None


class PartitionItem(Reply):
    partition_key: str
    start: int | None
    end: int | None
    row_count: int
    byte_count: int
    task_id: UUID
    attempt: int
    committed_at: datetime
    storage_ref: dict[str, Any]


class GenerationItem(Reply):
    dataset_version: UUID
    generation_no: int
    state: Literal["current", "building", "old"]
    created_at: datetime
    partitions: int
    row_count: int
    byte_count: int


class ConsumerItem(Reply):
    """A job that reads a dataset by cursors, and how far it has got."""

    dag: str
    job: str
    cursor: int
    advanced_at: datetime


class DatasetDetail(DatasetItem):
    columns: list[dict[str, str]]
    partition_list: list[PartitionItem]
    """One page of them, by their blocks."""
    next: str | None = None
    gaps: list[tuple[int, int]]
    generations: list[GenerationItem] = []
    consumers: list[ConsumerItem] = []


class OutboxItem(Reply):
    """A side effect that is still to be performed, or that failed for good."""

    outbox_id: int
    kind: str
    target: str
    subject: UUID
    tries: int
    next_try_at: datetime
    failed_at: datetime | None
    last_error: str | None
    created_at: datetime


class OutboxList(Reply):
    items: list[OutboxItem]
    next: str | None


class ReplayReply(Reply):
    replayed: int
