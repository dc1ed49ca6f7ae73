"""Triggers: requests for a source to emit an event."""

from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, Field, model_validator

from trace_etl.api.body import Block, Key, ListReply, Name, Reply, UserRequest, check_range

MAX_ROOTS = 10_000


def _convert_to_utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("must be a time between the years 1 and 9999 in UTC") from error


TickTime = Annotated[AwareDatetime, AfterValidator(_convert_to_utc)]


class TriggerRequest(UserRequest):
    """What a source emits an event for.

    A manual source takes a block range, a cursor or a partition key, with or without a payload, or a payload
    alone. A cron source takes the time of a tick; by default this second.
    """

    dag: Name
    job: Name
    start: Block | None = None
    end: Block | None = None
    cursor: Block | None = None
    partition_key: Key | None = None
    """A key of the form `{start}-{end}` is that block range."""
    payload: Any = None
    """JSON for the tasks. Without a range, cursor or key, each request is an event of its own."""
    scheduled_time: TickTime | None = None
    """The time of a tick, to the second."""

    @model_validator(mode="after")
    def _check_scope(self) -> "TriggerRequest":
        check_range(self.start, self.end)
        given = [n for n in ("start", "cursor", "partition_key") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ValueError(f"give only one of {', '.join(f'`{name}`' for name in given)}")
        return self


class TriggerReply(Reply):
    event_id: UUID | None
    task_id: UUID | None = None
    """The task of a source with a function, which emits the events. `event_id` is null then."""
    dag: str
    job: str
    partition_key: str | None
    cursor: int | None = None
    created: bool
    """False if everything was triggered before; no event is created then."""
    ranges: list[str]
    """The parts of the range that were not triggered before. Each is an event."""
    event_ids: list[UUID] = []
    """The new events, or the newest earlier one. `POST /v1/progress` takes them."""
    retried: int
    """Failed and canceled tasks that run again, because their scope was triggered before."""
    retried_task_ids: list[UUID] = []
    deferred_by: str | None = None
    """The user or queue that paused the source. The event is stored, and routed when the source resumes."""


class DeliveryReply(Reply):
    event_id: UUID | None
    task_id: UUID | None = None
    """The task of a source with a function, which emits the events. `event_id` is null then."""
    delivery_id: str
    partition_key: str | None
    cursor: int | None
    created: bool
    """False if this delivery was accepted before; no event is created then."""
    deferred_by: str | None
    """What paused the source. The event is stored, and routed when the source resumes."""


class ProgressRequest(UserRequest):
    """Events, tasks or a rollout of a DAG. The answer counts everything that they caused in the DAG."""

    dag: Name
    event_ids: Annotated[list[UUID], Field(max_length=MAX_ROOTS)] = []
    task_ids: Annotated[list[UUID], Field(max_length=MAX_ROOTS)] = []
    rollout_id: UUID | None = None
    """The events and tasks that this deploy created."""


class CausedFailure(Reply):
    task_id: UUID
    dag: str
    job: str
    partition_key: str | None
    status: str
    error_code: str | None
    error_message: str | None


class CausedWork(Reply):
    """The tasks and events that a trigger or a deploy caused, directly and indirectly."""

    queued: int
    running: int
    retrying: int
    """Failed tasks that wait for their next attempt."""
    completed: int
    failed: int
    canceled: int
    unrouted: int
    """Events whose tasks are not created yet."""
    deferred: int
    """Events that wait until a paused job resumes."""
    failures: list[CausedFailure] = []
    """The first tasks that failed permanently or were canceled."""


class TriggerItem(Reply):
    """A triggered event of a source: a block range or a cursor."""

    event_id: UUID
    dag: str
    job: str
    source_kind: str
    partition_key: str | None
    start: int | None
    end: int | None
    cursor: int | None
    scheduled_time: datetime | None = None
    """cron: the time of the tick."""
    triggered_at: datetime
    routed_at: datetime | None


class TriggerList(ListReply[TriggerItem]):
    """One page of triggers."""
