"""The user API: pauses and backpressure."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import StringConstraints

from trace_etl.api.body import ListReply, Name, Reply, Request

Tier = Literal["bulk", "normal"]
Words = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00]*$")]


class PauseRequest(Request):
    dag: Name
    job: Name | None = None
    """None: every job of the DAG."""
    reason: Words = ""
    tier: Tier = "normal"
    """`bulk` holds bulk work only, `normal` everything."""


class PauseReply(Reply):
    dag: str
    jobs: list[str]


class ResumeRequest(Request):
    dag: Name
    job: Name | None = None


class StillPaused(Reply):
    job: str
    by: str
    tier: Tier


class ResumeReply(Reply):
    dag: str
    jobs: list[str]
    """Those that a person had paused."""
    still_paused: list[StillPaused]
    """Those that backpressure holds all the same."""


class PauseItem(Reply):
    dag: str
    job: str
    tier: Tier
    by: str
    by_dag: str | None
    """The job whose queue pushes back; null: a person paused it."""
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
    """What it sheds upstream; null: it does not push back."""
    reason: Literal["depth", "age"] | None
    measured: int | None
    threshold: int | None
    since: datetime | None
    pausing: int
    """How many jobs wait for it."""


class OperatorItem(Reply):
    operator: str
    queued: int
    running: int
    cap: int | None
    """At most so many at once, over all jobs; null: no limit."""


class Pressure(Reply):
    queues: list[QueueItem]
    operators: list[OperatorItem]
    deferred_events: int
    """Events that wait for a paused job to go on."""
