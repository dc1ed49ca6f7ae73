"""The column types, each with its form in Spark, Arrow, Postgres, DuckDB, JSON and the DAG file.

Every module that translates a column type reads this table. Arrays and the digits of decimals are
added by the module that writes or parses the form.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, LiteralString

DeclaredType = Literal[
    "boolean", "int", "long", "double", "decimal", "string", "binary", "date", "timestamp"
]
"""The types that a `schema:` in a DAG file can name."""

_DAYS_TO_2000 = 10_957
_MICROSECONDS_TO_2000 = 946_684_800_000_000
_DIGITS = re.compile(r"-?[0-9]+")


@dataclass(frozen=True)
class ColumnType:
    """One column type and its name in each system."""

    name: str
    """The name in DAG files and the API, which Spark accepts too."""
    spark: str
    """The name in Spark's `simpleString`, which markers record."""
    arrow: str
    """The text of the Arrow type."""
    duckdb: str
    postgres: LiteralString | None
    """The name in Postgres's `format_type`; None: Postgres has no such type."""
    oid: int = 0
    """The type's number in Postgres, which a binary COPY of an array needs."""
    copy_format: str | None = None
    """The numpy format of a value in a binary COPY; None: the length varies."""
    copy_epoch: int = 0
    """The Arrow value of the day or microsecond that Postgres counts from."""
    fits_in: tuple[str, ...] = ()
    """Types that hold every value of this one, the nearest first."""
    parse_json: Callable[[Any], Any] | None = None
    """Function that reads a value from a batch's JSON; None: a buffered dataset cannot have this type."""
    is_widest: bool = True
    """Whether a buffered dataset stores this type itself, not one of `fits_in`."""
    aliases: tuple[str, ...] = ()


def _parse_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _parse_integer(value: Any, bits: int) -> int:
    # JSON writers that keep numbers as doubles can only send integers beyond 2^53 as strings.
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    if isinstance(value, str) and not _DIGITS.fullmatch(value):  # int() accepts "1_0" and others
        raise ValueError
    number, limit = int(value), 1 << (bits - 1)
    if not -limit <= number < limit:
        raise OverflowError
    return number


def _parse_double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def _parse_string(value: Any) -> str:
    if not isinstance(value, str) or "\x00" in value:
        raise TypeError
    value.encode()  # raises for half a surrogate pair
    return value


def _parse_binary(value: Any) -> bytes:
    if not isinstance(value, str) or not value.startswith("0x"):
        raise TypeError
    return bytes.fromhex(value[2:])


COLUMN_TYPES = (
    ColumnType("boolean", "boolean", "bool", "BOOLEAN", "boolean", 16, ">u1",
               parse_json=_parse_boolean),
    ColumnType("byte", "tinyint", "int8", "TINYINT", None,
               fits_in=("short", "int", "long", "double"), is_widest=False),
    ColumnType("short", "smallint", "int16", "SMALLINT", "smallint", 21, ">i2",
               fits_in=("int", "long", "double"), is_widest=False),
    ColumnType("int", "int", "int32", "INTEGER", "integer", 23, ">i4",
               fits_in=("long", "double"), parse_json=partial(_parse_integer, bits=32),
               is_widest=False, aliases=("integer",)),
    ColumnType("long", "bigint", "int64", "BIGINT", "bigint", 20, ">i8",
               parse_json=partial(_parse_integer, bits=64)),
    ColumnType("float", "float", "float", "FLOAT", "real", 700, ">f4",
               fits_in=("double",), is_widest=False),
    ColumnType("double", "double", "double", "DOUBLE", "double precision", 701, ">f8",
               parse_json=_parse_double),
    ColumnType("decimal", "decimal", "decimal128", "DECIMAL", "numeric", 1700),
    ColumnType("string", "string", "string", "VARCHAR", "text", 25, parse_json=_parse_string),
    ColumnType("binary", "binary", "binary", "BLOB", "bytea", 17, parse_json=_parse_binary),
    ColumnType("date", "date", "date32[day]", "DATE", "date", 1082, ">i4", _DAYS_TO_2000),
    ColumnType("timestamp", "timestamp", "timestamp[us, tz=UTC]", "TIMESTAMP WITH TIME ZONE",
               "timestamp with time zone", 1184, ">i8", _MICROSECONDS_TO_2000),
    ColumnType("timestamp_ntz", "timestamp_ntz", "timestamp[us]", "TIMESTAMP",
               "timestamp without time zone", 1114, ">i8", _MICROSECONDS_TO_2000),
)  # fmt: skip
BY_SPARK = {name: kind for kind in COLUMN_TYPES for name in (kind.name, kind.spark, *kind.aliases)}
"""Column types by the names that Spark writes and accepts, which include those of DAG files."""
BY_ARROW = {kind.arrow: kind for kind in COLUMN_TYPES}
BY_POSTGRES = {kind.postgres: kind for kind in COLUMN_TYPES if kind.postgres is not None}
BUFFERED = tuple(kind.name for kind in COLUMN_TYPES if kind.parse_json is not None)
"""The types of columns that a buffered dataset can have."""


def appended_form(name: str) -> ColumnType | None:
    """Return the type in which a Postgres table stores a Spark type; None: there is none."""
    return _first_form(name, lambda kind: kind.postgres is not None)


def buffered_form(name: str) -> ColumnType | None:
    """Return the type in which a buffered dataset stores a Spark type; None: there is none."""
    return _first_form(name, lambda kind: kind.is_widest and kind.parse_json is not None)


def holds_without_loss(declared: str, name: str) -> bool:
    """Return whether a column declared with one type holds every value of a Spark type."""
    return any(kind.name == declared for kind in _forms(name))


def _first_form(name: str, accepts: Callable[[ColumnType], bool]) -> ColumnType | None:
    return next(filter(accepts, _forms(name)), None)


def _forms(name: str) -> Iterable[ColumnType]:
    kind = BY_SPARK.get(name)
    return () if kind is None else (kind, *(BY_SPARK[wider] for wider in kind.fits_in))
