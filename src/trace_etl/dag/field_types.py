"""The types of the fields of a DAG file."""

import re
from typing import Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictInt,
    StrictStr,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from trace_etl.dag.column_types import DECLARED, parse_type
from trace_etl.dag.error_messages import show_value
from trace_etl.dag.where import check_where
from trace_etl.model.errors import Invalid
from trace_etl.model.scope import MAX_BLOCK

NAME = r"^[a-z][a-z0-9_]{0,127}$"
_DURATION = re.compile(r"[0-9]{1,9}[smhd]")
_MAX_SECONDS = 30 * 86400


def parse_seconds(value: object) -> object:
    """Convert `90`, `"90s"`, `"15m"`, `"2h"` or `"1d"` to seconds."""
    seconds = value
    if isinstance(value, str) and _DURATION.fullmatch(value):
        seconds = int(value[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[value[-1]]
    if isinstance(seconds, int) and not isinstance(seconds, bool) and 1 <= seconds <= _MAX_SECONDS:
        return seconds
    rule = "must be a time from 1s to 30d, such as 90, 90s, 15m, 2h or 1d"
    raise PydanticCustomError("seconds", "{m}", {"m": f"{rule}, not {show_value(value)}"})


def parse_where(value: object) -> object:
    """Convert a filter to its map form."""
    if value is None:
        return None
    try:
        return check_where(value)
    except Invalid as error:
        fault = error.faults[0]
        column = fault.field.removeprefix("where").removeprefix(".")
        message = f"{column!r} {fault.message}" if column else fault.message
        raise PydanticCustomError("where", "{m}", {"m": message}) from error


def check_output(value: object) -> object:
    """Accept the name or the index of an output."""
    if isinstance(value, str) or (type(value) is int and value >= 0):
        return value
    rule = f"must be the name of an output or its index (0 or more), not {show_value(value)}"
    raise PydanticCustomError("output", "{m}", {"m": rule})


def _check_column_type(value: str) -> str:
    declared = parse_type(value)
    if declared is not None and declared.kind.name in DECLARED:
        return value
    names = ", ".join(DECLARED)
    rule = f"must be {names}, decimal(precision,scale) with at most 38 digits, or array<…> of these"
    raise PydanticCustomError("column_type", "{m}", {"m": f"{rule}, not {show_value(value)}"})


Text = StrictStr
_SCALAR = rf"({'|'.join(DECLARED)}|decimal\([0-9]{{1,2}}, ?[0-9]{{1,2}}\))"
ColumnTypeName = Annotated[
    StrictStr,
    AfterValidator(_check_column_type),
    WithJsonSchema({"type": "string", "pattern": f"^({_SCALAR}|array<{_SCALAR}>)$"}),
]
Name = Annotated[StrictStr, Field(pattern=NAME)]
Identifier = Annotated[StrictStr, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Count = Annotated[StrictInt, Field(ge=1)]
Block = Annotated[StrictInt, Field(ge=0, le=MAX_BLOCK)]
Attempts = Annotated[StrictInt, Field(ge=1, le=100)]
Seconds = Annotated[
    int,
    BeforeValidator(parse_seconds, json_schema_input_type=int | str),
    Field(description="Seconds, or a duration such as 90s, 15m, 2h or 1d."),
]
Dotted = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$", max_length=256)]
