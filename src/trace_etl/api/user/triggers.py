"""Triggers: requests for a source to emit an event."""

from datetime import datetime
from uuid import UUID

from trace_etl.api.body import JobRange, ListReply, Reply


class TriggerRequest(JobRange):
    """A block range for which a source emits an event."""


class TriggerReply(Reply):
    event_id: UUID
    dag: str
    job: str
    partition_key: str
    created: bool
    """False if all blocks of the range were triggered before; no event is created then."""
    ranges: list[str]
    """The parts of the range that were not triggered before. Each is an event."""
    retried: int
    """Failed tasks of the range that are retried, because it was triggered before."""
    deferred_by: str | None = None
    """The user or queue that paused the source. The event is stored, and routed when the source resumes."""


class DeliveryReply(Reply):
    event_id: UUID
    delivery_id: str
    partition_key: str | None
    cursor: int | None
    created: bool
    """False if this delivery was accepted before; no event is created then."""
    deferred_by: str | None
    """What paused the source. The event is stored, and routed when the source resumes."""


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
    triggered_at: datetime
    routed_at: datetime | None


class TriggerList(ListReply[TriggerItem]):
    """One page of triggers."""
