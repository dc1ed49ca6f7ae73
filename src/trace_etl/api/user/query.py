"""Queries over published datasets."""

from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, StringConstraints

from trace_etl.api.body import Reply, Request

MAX_ROWS = 10_000


class QueryRequest(Request):
    sql: Annotated[str, StringConstraints(min_length=1, max_length=100_000, pattern=r"^[^\x00]*$")]
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] = MAX_ROWS


class QueryColumn(Reply):
    name: str
    type: str
    """The DuckDB name of the type."""


class PinnedDataset(Reply):
    """A dataset generation that a query read, and its number of partitions at that time."""

    dataset: str
    dataset_version: UUID
    partitions: int


class QueryReply(Reply):
    """Rows as JSON: bytes as `0x…`, times as ISO 8601, decimals and integers above 2**53 as strings."""

    columns: list[QueryColumn]
    rows: list[list[Any]]
    row_count: int
    truncated: bool
    """The query returned more rows than `limit`, or more bytes than a result may have."""
    elapsed_ms: float
    pinned: list[PinnedDataset]
