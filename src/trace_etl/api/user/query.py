"""The Query Service: one SELECT in, rows out."""

from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, StringConstraints

from trace_etl.api.body import Reply, Request

MAX_ROWS = 10_000
MAX_BYTES = 10 * 1024 * 1024


class QueryRequest(Request):
    sql: Annotated[str, StringConstraints(min_length=1, max_length=100_000, pattern=r"^[^\x00]*$")]
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] = MAX_ROWS


class QueryColumn(Reply):
    name: str
    type: str
    """As DuckDB names it."""


class PinnedDataset(Reply):
    """What a query read: the generation, and how many of its partitions were committed."""

    dataset: str
    dataset_version: UUID
    partitions: int


class QueryReply(Reply):
    """Bytes are `0x…`, times ISO 8601, decimals and integers beyond 2**53 strings."""

    columns: list[QueryColumn]
    rows: list[list[Any]]
    row_count: int
    truncated: bool
    """More rows matched than `limit`, or than fit into an inline result."""
    elapsed_ms: float
    pinned: list[PinnedDataset]
