"""Column types: what Arrow calls them, and what Postgres does. Both ways, and no others."""

import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

_Type = Any  # an Arrow type
_SCALARS: dict[str, _Type] = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "text": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
    "timestamp without time zone": pa.timestamp("us"),
}
_NAMES = {kind: name for name, kind in _SCALARS.items()}
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")


def postgres_type(kind: _Type) -> str:
    """The Postgres type that holds an Arrow type. Raises TypeError when there is none."""
    if kinds.is_list(kind) and not kinds.is_list(kind.value_type):
        return f"{postgres_type(kind.value_type)}[]"
    if kinds.is_decimal128(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if kind in _NAMES:
        return _NAMES[kind]
    raise TypeError(f"a column of type {kind} has no place in a table of Postgres data")


def arrow_type(name: str) -> _Type:
    """The Arrow type of a Postgres type, as `format_type` writes it. Raises TypeError."""
    if name.endswith("[]"):
        return pa.list_(arrow_type(name[:-2]))
    if found := _NUMERIC.fullmatch(name):
        return pa.decimal128(int(found[1]), int(found[2]))
    if name in _SCALARS:
        return _SCALARS[name]
    raise TypeError(f"a column of type {name} in Postgres data is none of ours")


def arrow_schema(shape: Iterable[tuple[str, str]]) -> Any:
    """The Arrow schema of a table's columns. Raises TypeError."""
    return pa.schema([(name, arrow_type(kind)) for name, kind in shape])
