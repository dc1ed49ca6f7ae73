"""Retries of failed tasks on request."""

from typing import Annotated, Self
from uuid import UUID

from pydantic import Field, model_validator

from trace_etl.api.body import Name, Reply, UserRequest

MAX_LISTED = 100


class TaskChoice(UserRequest):
    """Which tasks to change. Every given field narrows the choice."""

    task_ids: Annotated[list[UUID], Field(min_length=1, max_length=1000)] | None = None
    dag: Name | None = None
    job: Name | None = None
    error_code: Name | None = None
    dry_run: bool = False
    """Return what would be changed and change nothing."""

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        if self.task_ids is None and self.dag is None and self.error_code is None:
            raise ValueError("give at least one of `task_ids`, `dag` and `error_code`")
        if self.job is not None and self.dag is None:
            raise ValueError("`job` needs `dag`: names of jobs are unique in one DAG only")
        return self


class RetryRequest(TaskChoice):
    """Which failed tasks to retry. Every given field narrows the choice."""


class FailedTask(Reply):
    task_id: UUID
    dag: str
    job: str
    partition_key: str | None
    cursor: int | None
    attempt: int
    error_code: str | None
    error_message: str | None
    is_retired: bool
    """The DAG no longer has the definition of this task, so it is not retried."""


class SkippedTask(Reply):
    task_id: UUID
    reason: str


class RetryGroup(Reply):
    """The retried tasks of one job that failed with one error."""

    dag: str
    job: str
    error_code: str | None
    tasks: int


class RetryReply(Reply):
    dry_run: bool
    retried: int
    """Tasks that are retried, or would be."""
    groups: list[RetryGroup]
    tasks: list[FailedTask]
    """The first of the retried tasks."""
    skipped: list[SkippedTask]
    """The first of the tasks that are not retried, each with the reason."""
    skipped_count: int
