"""Batches of buffered datasets."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from trace_etl.api.body import ListReply, Reply

BatchState = Literal["waiting", "written", "failed"]


class BatchItem(Reply):
    """A batch that a task published to a buffered dataset."""

    publish_id: UUID
    dataset: str
    """The published name."""
    dag: str
    job: str
    task_id: UUID
    attempt: int
    batch_uri: str
    record_count: int | None
    state: BatchState
    row_count: int | None
    cursor: int | None
    accepted_at: datetime
    ended_at: datetime | None
    error_code: str | None
    error_message: str | None


class BatchList(ListReply[BatchItem]):
    """One page of batches."""


class BatchDetail(BatchItem):
    dataset_uuid: UUID
    dataset_version: UUID
    content_type: str
    batch_size_bytes: int | None


class BatchRetried(Reply):
    publish_id: UUID


class BatchDropped(Reply):
    publish_id: UUID
