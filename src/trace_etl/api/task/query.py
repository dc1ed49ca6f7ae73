"""Queries of tasks over their inputs."""

from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, StringConstraints

from trace_etl.api.body import Reply, Request
from trace_etl.api.user.data.query import MAX_ROWS, Params, PinnedDataset, QueryColumn
from trace_etl.model.result_formats import ResultFormat


class TaskQueryRequest(Request):
    sql: Annotated[str, StringConstraints(min_length=1, max_length=100_000, pattern=r"^[^\x00]*$")]
    params: Params = None
    """Values of `?` or `$1` as a list, or of `$name` as an object."""
    format: ResultFormat = ResultFormat.JSON
    """The format of a result within the limits of an answer."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """The maximum number of rows. Default: all rows."""


class ResultObject(Reply):
    """A result that is too large for an answer."""

    uri: str
    """`s3://bucket/key`, under the scratch prefix of the attempt."""
    bytes: int


class TaskQueryReply(Reply):
    """The result as JSON, or the Parquet object with it: `rows` is then null."""

    query_id: UUID
    columns: list[QueryColumn]
    rows: Annotated[list[list[Any]] | None, Field(max_length=MAX_ROWS)]
    object: ResultObject | None = None
    row_count: int
    truncated: bool
    """The query returned more rows than `limit`."""
    elapsed_ms: float
    pinned: list[PinnedDataset]
