"""Cancellations of tasks on request."""

from typing import Literal

from trace_etl.api.body import Reply
from trace_etl.api.user.tasks.retries import SkippedTask, TaskChoice
from trace_etl.model.task import TaskStatus


class CancelRequest(TaskChoice):
    """Which unfinished tasks to cancel. Every given field narrows the choice."""

    status: Literal["Queued", "Running", "Failed"] | None = None
    """Failed: tasks that wait for their next attempt."""

    def is_chosen(self, dag: str, job: str, status: TaskStatus, error_code: str | None) -> bool:
        """Return whether all given fields match."""
        wanted = (self.dag, self.job, self.status, self.error_code)
        return all(
            w in (None, f) for w, f in zip(wanted, (dag, job, status, error_code), strict=True)
        )


class CancelGroup(Reply):
    """The canceled tasks of one job that had one status and one error."""

    dag: str
    job: str
    status: TaskStatus
    error_code: str | None
    tasks: int


class CancelTasksReply(Reply):
    dry_run: bool
    canceled: int
    """Waiting tasks that are canceled, or would be."""
    stopping: int
    """Running tasks that are asked to stop, or would be."""
    groups: list[CancelGroup]
    skipped: list[SkippedTask]
    """The first of the named tasks that are not canceled, each with the reason."""
    skipped_count: int
