"""Translate column types between Arrow and Postgres."""

import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from trace_etl.dag.column_types import BY_ARROW, BY_POSTGRES, FullType, parse_type

_Type = Any  # an Arrow type
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")


def postgres_type(kind: _Type) -> str:
    """Return the Postgres type that stores an Arrow type. Raises TypeError if there is none."""
    if kinds.is_list(kind) and not kinds.is_list(kind.value_type):
        return f"{postgres_type(kind.value_type)}[]"
    if kinds.is_decimal128(kind):
        return f"numeric({kind.precision},{kind.scale})"
    known = BY_ARROW.get(str(kind))
    if known is None or known.postgres is None:
        raise TypeError(f"Postgres data cannot store a column of type {kind}")
    return known.postgres


def arrow_type(name: str) -> _Type:
    """Return the Arrow type of a Postgres type, as `format_type` writes it. Raises TypeError."""
    if name.endswith("[]"):
        return pa.list_(arrow_type(name[:-2]))
    if match := _NUMERIC.fullmatch(name):
        return pa.decimal128(int(match[1]), int(match[2]))
    if name not in BY_POSTGRES or name == "numeric":
        raise TypeError(f"this platform does not create columns of type {name} in Postgres data")
    return _parse_arrow(BY_POSTGRES[name].arrow)


def arrow_schema(columns: Iterable[tuple[str, str]]) -> Any:
    """Return the Arrow schema of a Postgres table's columns. Raises TypeError."""
    return pa.schema([(name, arrow_type(kind)) for name, kind in columns])


def declared_arrow_type(name: str) -> _Type:
    """Return the Arrow type of a column type by its name in DAG files. Raises TypeError."""
    declared = parse_type(name)
    if declared is None:
        raise TypeError(f"there is no column type {name}")
    return full_arrow_type(declared)


def full_arrow_type(declared: FullType) -> _Type:
    """Return the Arrow type of a column type with its digits, or of an array."""
    if declared.is_array:
        return pa.list_(full_arrow_type(declared.element))
    if declared.digits is not None:
        return pa.decimal128(*declared.digits)
    return _parse_arrow(declared.kind.arrow)


def full_postgres_type(declared: FullType) -> str:
    """Return the Postgres type of a column type with its digits, or of an array."""
    digits = f"({declared.digits[0]},{declared.digits[1]})" if declared.digits else ""
    return f"{declared.kind.postgres}{digits}{'[]' if declared.is_array else ''}"


def is_wider_or_equal(stored: _Type, given: _Type) -> bool:
    """Whether a column of the stored type holds every value of the given type unchanged."""
    if kinds.is_list(stored) and kinds.is_list(given):
        return is_wider_or_equal(stored.value_type, given.value_type)
    if kinds.is_decimal128(stored) and kinds.is_decimal128(given):
        whole = stored.precision - stored.scale >= given.precision - given.scale
        return whole and stored.scale >= given.scale
    for family in (kinds.is_signed_integer, kinds.is_floating):
        if family(stored) and family(given):
            return stored.bit_width >= given.bit_width
    return stored == given


def cast_batch(batch: Any, schema: Any) -> Any:
    """Cast a batch of the driver, which reads numerics as text, to the table's types."""
    return batch if batch.schema == schema else batch.cast(schema)


def _parse_arrow(text: str) -> _Type:
    if text.endswith(", tz=UTC]"):  # Arrow has no alias for types with a time zone
        return pa.timestamp("us", "UTC")
    return pa.type_for_alias(text)
