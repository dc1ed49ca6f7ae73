"""Triggers: requests for a source to emit an event."""

from datetime import datetime
from uuid import UUID

from pydantic import model_validator

from trace_etl.api.body import Block, ListReply, Name, Reply, Request


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


class TriggerItem(Reply):
    """What a source was asked for."""

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
