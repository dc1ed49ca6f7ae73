"""Bodies of the calls between the sink and the Dispatcher about batches of buffered datasets."""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field, StringConstraints, model_validator

from trace_etl.api.body import Reply, Request

MAX_BATCH_BYTES = 16 * 1024 * 1024
"""Maximum size of a batch file."""
MAX_BATCH_ROWS = 500_000
"""Maximum rows per batch."""
MAX_BATCHES = 100
"""Maximum batches in one call."""
Text = Annotated[str, StringConstraints(max_length=8000, pattern=r"^[^\x00]*$")]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class BufferColumn(Reply):
    name: str
    type: str
    nullable: bool = True


class BufferBatch(Reply):
    """A batch as the Dispatcher recorded it. Trusted, unlike the content of the batch file."""

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
    batch_size_bytes: int | None = None
    columns: list[BufferColumn] | None
    """Null if the dataset is not buffered."""
    unique_key: list[str] = []


class BufferFetch(Request):
    """The batches to read."""

    publish_ids: Annotated[list[UUID], Field(min_length=1, max_length=MAX_BATCHES)]


class BufferBatches(Reply):
    """The batches that the Dispatcher knows. Others were deleted, or never existed."""

    batches: list[BufferBatch]


class BufferResult(Request):
    """The result of a batch: its rows were written, or the error that prevented it."""

    publish_id: UUID
    status: Literal["Completed", "Failed"]
    row_count: Count | None = None
    cursor: Count | None = None
    """The new end of the dataset for readers; null if the batch changed nothing."""
    error_code: Annotated[str, StringConstraints(max_length=128, pattern=r"^[^\x00]*$")] | None = (
        None
    )
    error_message: Text | None = None

    @model_validator(mode="after")
    def _check_result_fields(self) -> "BufferResult":
        if self.status == "Completed" and self.row_count is None:
            raise ValueError("`row_count` is required when `status` is `Completed`")
        if self.status == "Failed" and not self.error_code:
            raise ValueError("`error_code` is required when `status` is `Failed`")
        return self


class BufferComplete(Request):
    """The results of batches, recorded together. Results of unknown batches are ignored."""

    results: Annotated[list[BufferResult], Field(min_length=1, max_length=MAX_BATCHES)]


class BufferCompleteAccepted(Reply):
    status: Literal["Accepted"] = "Accepted"
