"""Queries over published datasets."""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, cast
from uuid import UUID

from pydantic import BeforeValidator, Field, StringConstraints, ValidationInfo, field_validator

from trace_etl.api.body import Reply, UserRequest
from trace_etl.model.result_formats import ResultFormat

MAX_ROWS = 10_000
MAX_PARAMS = 1000
ParamName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1
Number = Annotated[int, Field(ge=_MIN_INTEGER, le=_MAX_INTEGER)]
Param = None | bool | Number | float | str
_PARAM_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def _check_params(params: Any) -> Any:
    """Check parameters before the union does, whose errors would name each of its alternatives."""
    if params is None:
        return params
    if not isinstance(params, list | dict):
        raise ValueError("must be a list of values, or an object with a value for each name")
    values = cast(list[Any] | dict[Any, Any], params)
    if len(values) > MAX_PARAMS:
        raise ValueError(f"has {len(values)} values; the maximum is {MAX_PARAMS}")
    pairs: Iterable[tuple[Any, Any]] = (
        values.items() if isinstance(values, dict) else enumerate(values, start=1)
    )
    for name, value in pairs:
        if isinstance(name, str) and not _PARAM_NAME.fullmatch(name):
            raise ValueError(
                f"{name[:63]!r} is not a parameter name; use letters, digits and underscores"
            )
        if not (value is None or isinstance(value, bool | int | float | str)):
            raise ValueError(f"the value of ${name} must be null, true, false, a number or a text")
        if isinstance(value, int) and not _MIN_INTEGER <= value <= _MAX_INTEGER:
            raise ValueError(
                f"the value of ${name} has more than 64 bits; send it as text and cast it"
            )
    return values


Params = Annotated[
    Annotated[list[Param], Field(max_length=MAX_PARAMS)]
    | Annotated[dict[ParamName, Param], Field(max_length=MAX_PARAMS)]
    | None,
    BeforeValidator(_check_params),
]


class QueryRequest(UserRequest):
    sql: Annotated[str, StringConstraints(min_length=1, max_length=100_000, pattern=r"^[^\x00]*$")]
    params: Params = None
    """Values of `?` or `$1` as a list, or of `$name` as an object."""
    format: ResultFormat = ResultFormat.JSON
    """Results in other formats than `json` are streamed."""
    stream: bool = False
    """Stream `json` too: the same reply, with all rows."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Default: 10,000 rows of a reply that is not streamed, which is the maximum; otherwise all rows."""

    @property
    def is_streamed(self) -> bool:
        return self.stream or self.format is not ResultFormat.JSON

    @field_validator("limit")
    @classmethod
    def _check_limit(cls, limit: int | None, info: ValidationInfo) -> int | None:
        is_streamed = info.data.get("stream") or info.data.get("format") != ResultFormat.JSON
        if limit is not None and limit > MAX_ROWS and not is_streamed:
            raise ValueError(f"above {MAX_ROWS}: stream the result, or choose another format")
        return limit


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


class DatasetSnapshot(PinnedDataset):
    """The files of a dataset that are committed at one instant."""

    files: list[str]
    """Paths on the machine of the stack, or signed URLs if the object store is remote."""
    expires_at: datetime | None
    """When the URLs expire; null for paths."""
    has_table: bool
    """Rows may also be in a table of Postgres data."""
