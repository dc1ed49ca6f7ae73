"""Webhook deliveries."""

from uuid import UUID

from trace_etl.api.body import Reply


class DeliveryReply(Reply):
    event_id: UUID
    delivery_id: str
    partition_key: str | None
    cursor: int | None
    created: bool
    """False if this delivery was accepted before; no event is created then."""
    deferred_by: str | None
    """What paused the source. The event is stored, and routed when the source resumes."""
