"""Pauses and backpressure."""

from datetime import datetime
from typing import Annotated

from pydantic import StringConstraints

from trace_etl.api.body import ListReply, Name, Reply, UserRequest
from trace_etl.model.dag import Priority
from trace_etl.model.flow import QueueLimit

PauseReason = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00]*$")]


class PauseRequest(UserRequest):
    dag: Name
    job: Name | None = None
    """Null means every job of the DAG."""
    reason: PauseReason = ""
    tier: Priority = "normal"
    """`bulk` pauses bulk tasks only; `normal` pauses all tasks."""


class PauseReply(Reply):
    dag: str
    jobs: list[str]


class ResumeRequest(UserRequest):
    dag: Name
    job: Name | None = None


class StillPaused(Reply):
    job: str
    by: str
    tier: Priority


class ResumeReply(Reply):
    dag: str
    jobs: list[str]
    """Jobs that a user had paused."""
    still_paused: list[StillPaused]
    """Jobs that stay paused because of backpressure."""


class PauseItem(Reply):
    dag: str
    job: str
    tier: Priority
    by: str
    by_dag: str | None
    """The DAG of the job whose queue causes backpressure; null if a user paused it."""
    by_job: str | None
    reason: str
    since: datetime


class PauseList(ListReply[PauseItem]):
    """One page of pauses."""


class QueueItem(Reply):
    dag: str
    job: str
    max_queue_depth: int | None
    max_queue_age: int | None
    normal: int
    bulk: int
    oldest_queued_at: datetime | None
    sheds: Priority | None
    """The upstream tasks that the queue pauses; null if it causes no backpressure."""
    reason: QueueLimit | None
    measured: int | None
    threshold: int | None
    since: datetime | None
    pausing: int
    """Number of jobs that the queue pauses."""


class OperatorItem(Reply):
    operator: str
    queued: int
    running: int
    cap: int | None
    """Maximum concurrent attempts over all jobs; null means no limit."""


class Pressure(Reply):
    queues: list[QueueItem]
    operators: list[OperatorItem]
    deferred_events: int
    """Events that wait until a paused job resumes."""
