"""Notifications that were sent, wait for delivery, or failed."""

from datetime import datetime
from typing import Any
from uuid import UUID

from trace_etl.api.body import ListReply, Reply


class NotificationItem(Reply):
    notification_id: UUID
    """The id of the delivery: the same for every try."""
    dag: str
    rule: str
    event: str
    detail: dict[str, Any]
    url: str
    tries: int
    created_at: datetime
    next_try_at: datetime | None
    sent_at: datetime | None
    failed_at: datetime | None
    last_error: str | None


class NotificationList(ListReply[NotificationItem]):
    """The newest notifications."""
