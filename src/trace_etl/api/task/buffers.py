"""Batches for buffered datasets: what the sink is told of one, and what it tells in return."""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field, StringConstraints, model_validator

from trace_etl.api.body import Reply, Request

MAX_BATCH_BYTES = 16 * 1024 * 1024
"""A batch artifact may be this large."""
MAX_BATCH_ROWS = 500_000
"""A batch may have so many rows."""
Text = Annotated[str, StringConstraints(max_length=8000, pattern=r"^[^\x00]*$")]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class BufferColumn(Reply):
    name: str
    type: str
    nullable: bool = True


class BufferBatch(Reply):
    """A batch as the Dispatcher recorded it: trusted, unlike what is in the batch."""

    publish_id: UUID
    publish_no: int
    org_id: UUID
    task_id: UUID
    attempt: int
    dataset_uuid: UUID
    dataset_version: UUID
    batch_uri: str
    content_type: str
    record_count: int | None
    columns: list[BufferColumn] | None
    """Null: the dataset is not buffered."""
    unique_key: list[str] = []


class BufferComplete(Request):
    """What became of a batch: its rows are in the table, or why they are not."""

    publish_id: UUID
    status: Literal["Completed", "Failed"]
    row_count: Count | None = None
    cursor: Count | None = None
    """What to read up to; null: nothing changed."""
    error_code: Annotated[str, StringConstraints(max_length=128, pattern=r"^[^\x00]*$")] | None = (
        None
    )
    error_message: Text | None = None

    @model_validator(mode="after")
    def _says_what_happened(self) -> "BufferComplete":
        if self.status == "Completed" and self.row_count is None:
            raise ValueError("`row_count` belongs to a completed batch")
        if self.status == "Failed" and not self.error_code:
            raise ValueError("`error_code` belongs to a failed batch")
        return self


class BufferCompleteAccepted(Reply):
    status: Literal["Accepted"] = "Accepted"
