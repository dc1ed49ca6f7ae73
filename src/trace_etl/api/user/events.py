"""Events of datasets."""

from datetime import datetime
from uuid import UUID

from trace_etl.api.body import ListReply, Reply


class EventItem(Reply):
    """A change of a dataset."""

    event_id: UUID
    dag: str
    job: str
    output: str
    dataset: str | None
    dataset_uuid: UUID
    dataset_version: UUID
    partition_key: str | None
    start: int | None
    end: int | None
    cursor: int | None
    producer_task_id: UUID
    attempt: int
    accepted_at: datetime
    routed_at: datetime | None
    """When its tasks were created; null if not yet, or if no job reads the generation."""


class EventList(ListReply[EventItem]):
    """One page of events."""
