"""The user API: deliveries of webhooks."""

from uuid import UUID

from trace_etl.api.body import Reply


class DeliveryReply(Reply):
    event_id: UUID
    delivery_id: str
    partition_key: str | None
    cursor: int | None
    created: bool
    """False: this delivery had been accepted before, and nothing new was asked for."""
    deferred_by: str | None
    """Who paused the source: the event is kept, and routed when the source goes on."""
