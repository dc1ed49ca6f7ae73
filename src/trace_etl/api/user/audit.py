"""The record of all queries."""

from datetime import datetime
from uuid import UUID

from trace_etl.api.body import ListReply, Reply


class AuditedDataset(Reply):
    """A dataset that a query named. The version is null if the query was refused before it was pinned."""

    dataset: str
    dataset_version: UUID | None = None


class AuditItem(Reply):
    """One query, answered or refused."""

    query_id: UUID
    asked_at: datetime
    user: str | None
    """Null if a task sent the query."""
    task_id: UUID | None
    attempt: int | None
    outcome: str
    """`ok`, `client_gone`, or the `code` of the refusal."""
    datasets: list[AuditedDataset]
    row_count: int
    byte_count: int
    """The size of the result as it was sent."""
    elapsed_ms: float


class AuditList(ListReply[AuditItem]):
    """One page of queries."""
