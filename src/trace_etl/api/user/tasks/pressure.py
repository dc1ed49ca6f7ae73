"""Pauses and backpressure."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import StringConstraints

from trace_etl.api.body import ListReply, Name, Reply, UserRequest

Tier = Literal["normal", "bulk"]
PauseReason = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00]*$")]


class PauseRequest(UserRequest):
    dag: Name
    job: Name | None = None
    """Null means every job of the DAG."""
    reason: PauseReason = ""
    tier: Tier = "normal"
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
    tier: Tier


class ResumeReply(Reply):
    dag: str
    jobs: list[str]
    """Jobs that a user had paused."""
    still_paused: list[StillPaused]
    """Jobs that stay paused because of backpressure."""


class PauseItem(Reply):
    dag: str
    job: str
    tier: Tier
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
    sheds: Tier | None
    """The upstream tasks that the queue pauses; null if it causes no backpressure."""
    reason: Literal["depth", "age"] | None
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
