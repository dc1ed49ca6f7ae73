"""Batches of buffered datasets."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from trace_etl.api.body import ListReply, Reply

BatchState = Literal["waiting", "written", "failed"]


class BatchItem(Reply):
    """A batch that a task published to a buffered dataset."""

    publish_id: UUID
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


class BatchRetried(Reply):
    publish_id: UUID
