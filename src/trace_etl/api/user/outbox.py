"""Side effects in the outbox."""

from datetime import datetime
from uuid import UUID

from trace_etl.api.body import ListReply, Reply


class OutboxItem(Reply):
    """A side effect that is pending or failed permanently."""

    outbox_id: int
    kind: str
    target: str
    subject: UUID
    tries: int
    next_try_at: datetime
    failed_at: datetime | None
    last_error: str | None
    created_at: datetime


class OutboxList(ListReply[OutboxItem]):
    """One page of the outbox."""


class ReplayReply(Reply):
    replayed: int
