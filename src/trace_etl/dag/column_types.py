"""The column types, each with its form in Spark, Arrow, Postgres, DuckDB, JSON and the DAG file.

Every module that translates a column type reads this table. Arrays and the digits of decimals are
added by the module that writes or parses the form.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any, LiteralString, cast

DECLARED = (
    *("boolean", "int", "long", "double", "decimal", "string", "binary", "date", "timestamp"),
    "json",
)
"""The types that a `schema:` in a DAG file can name, alone or as elements of `array<…>`."""
MAX_PRECISION = 38

RESERVED = ("_cursor", "_published")
"""Columns that the platform adds to the declared ones of a buffered dataset."""
MAX_TABLE_NAME_BYTES = 63
"""The limit of column names in a Postgres table. Postgres shortens longer names without an error."""
_DAYS_TO_2000 = 10_957
_MICROSECONDS_TO_2000 = 946_684_800_000_000
_DIGITS = re.compile(r"-?[0-9]+")
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_HEX = re.compile(r"0x([0-9a-fA-F]{2})*")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
TIMESTAMP_FORM = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})"
)
"""The form of a timestamp in JSON, as a regular expression."""
_TIMESTAMP = re.compile(TIMESTAMP_FORM)


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
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError
    number = float(value)
    if number - number != 0:  # a number beyond the largest double becomes infinite
        raise OverflowError
    return number


def _parse_decimal(value: Any) -> Decimal:
    """Parse a number, or its digits in quotes. The digits of the column are checked elsewhere."""
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        raise TypeError
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        raise ValueError
    return Decimal(value)


def _parse_date(value: Any) -> date:
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        raise TypeError
    return date.fromisoformat(value)


def _parse_timestamp(value: Any) -> datetime:
    if not isinstance(value, str) or not _TIMESTAMP.fullmatch(value):
        raise TypeError
    return datetime.fromisoformat(value).astimezone(UTC)


def _parse_string(value: Any) -> str:
    if not isinstance(value, str) or "\x00" in value:
        raise TypeError
    value.encode()  # raises for half a surrogate pair
    return value


def _parse_binary(value: Any) -> bytes:
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise TypeError
    return bytes.fromhex(value[2:])


def _keep(value: Any) -> Any:
    """A JSON column stores any value. The sink keeps the text of the value as the producer wrote it."""
    return value


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
    ColumnType("decimal", "decimal", "decimal128", "DECIMAL", "numeric", 1700,
               parse_json=_parse_decimal),
    # Before `string`, which has the same form in Spark and Arrow and is found by it.
    ColumnType("json", "string", "string", "JSON", "jsonb", 3802, parse_json=_keep),
    ColumnType("string", "string", "string", "VARCHAR", "text", 25, parse_json=_parse_string),
    ColumnType("binary", "binary", "binary", "BLOB", "bytea", 17, parse_json=_parse_binary),
    ColumnType("date", "date", "date32[day]", "DATE", "date", 1082, ">i4", _DAYS_TO_2000,
               parse_json=_parse_date),
    ColumnType("timestamp", "timestamp", "timestamp[us, tz=UTC]", "TIMESTAMP WITH TIME ZONE",
               "timestamp with time zone", 1184, ">i8", _MICROSECONDS_TO_2000,
               parse_json=_parse_timestamp),
    ColumnType("timestamp_ntz", "timestamp_ntz", "timestamp[us]", "TIMESTAMP",
               "timestamp without time zone", 1114, ">i8", _MICROSECONDS_TO_2000),
)  # fmt: skip
BY_SPARK = {name: kind for kind in COLUMN_TYPES for name in (kind.name, kind.spark, *kind.aliases)}
"""Column types by the names that Spark writes and accepts, which include those of DAG files."""
BY_ARROW = {kind.arrow: kind for kind in COLUMN_TYPES}
BY_POSTGRES = {kind.postgres: kind for kind in COLUMN_TYPES if kind.postgres is not None}
BUFFERED = tuple(
    f"{kind.name}(precision,scale)" if kind.name == "decimal" else kind.name
    for kind in COLUMN_TYPES
    if kind.parse_json is not None
)
"""The types of columns that a buffered dataset can have, for people."""


def appended_form(name: str) -> ColumnType | None:
    """Return the type in which a Postgres table stores a Spark type; None: there is none."""
    return _find_first_form(name, lambda kind: kind.postgres is not None)


@dataclass(frozen=True)
class FullType:
    """A column type with the digits of its decimals, or an array of it."""

    kind: ColumnType
    digits: tuple[int, int] | None = None
    """Precision and scale of a decimal."""
    is_array: bool = False

    @property
    def element(self) -> "FullType":
        return FullType(self.kind, self.digits)

    @property
    def spark(self) -> str:
        digits = f"({self.digits[0]},{self.digits[1]})" if self.digits else ""
        return f"array<{self.kind.spark}{digits}>" if self.is_array else self.kind.spark + digits

    def parse_json(self, value: Any) -> Any:
        """Read a value of a batch. Raises TypeError, ValueError or OverflowError."""
        if self.is_array:
            if not isinstance(value, list):
                raise TypeError
            items, element = cast("list[Any]", value), self.element
            return [None if item is None else element.parse_json(item) for item in items]
        assert self.kind.parse_json is not None
        parsed = self.kind.parse_json(value)
        if self.digits is not None and not _fits_digits(parsed, *self.digits):
            raise OverflowError
        return parsed


def _fits_digits(value: Decimal, precision: int, scale: int) -> bool:
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # the text has digits only: neither NaN nor infinite
    significant = "".join(map(str, digits)).strip("0")
    if not significant:
        return True
    last = exponent + len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return max(-last, 0) <= scale and value.adjusted() < precision - scale


_ARRAY_NAME = re.compile(r"array<(.+)>")
_DECIMAL_NAME = re.compile(r"decimal\(([0-9]{1,2}), ?([0-9]{1,2})\)")


def parse_type(name: str) -> FullType | None:
    """Parse a name such as `long`, `decimal(38,18)` or `array<string>`; None: there is no such type."""
    if array := _ARRAY_NAME.fullmatch(name):
        element = parse_type(array[1])
        is_flat = element is not None and not element.is_array and element.kind.name != "json"
        return FullType(element.kind, element.digits, True) if element and is_flat else None
    if match := _DECIMAL_NAME.fullmatch(name):
        precision, scale = int(match[1]), int(match[2])
        is_valid = 1 <= precision <= MAX_PRECISION and scale <= precision
        return FullType(BY_SPARK["decimal"], (precision, scale)) if is_valid else None
    return FullType(BY_SPARK[name]) if name in BY_SPARK else None


def buffered_form(name: str) -> FullType | None:
    """Return the type in which a buffered dataset stores a Spark type; None: there is none."""
    declared = parse_type(name)
    if declared is None or (declared.kind.name == "decimal" and declared.digits is None):
        return None
    kind = _find_first_form(
        declared.kind.name, lambda kind: kind.is_widest and kind.parse_json is not None
    )
    return FullType(kind, declared.digits, declared.is_array) if kind else None


def holds_without_loss(declared: str, name: str) -> bool:
    """Return whether a column declared with one type holds every value of a Spark type."""
    column, given = parse_type(declared), parse_type(name)
    if column is None or given is None or column.is_array != given.is_array:
        return False
    if column.digits is not None and given.digits is not None:
        (precision, scale), (other_precision, other_scale) = column.digits, given.digits
        return scale >= other_scale and precision - scale >= other_precision - other_scale
    if column.kind.name == "json":
        return given.kind.name == "string"
    return any(kind.name == column.kind.name for kind in _list_forms(given.kind.name))


def _find_first_form(name: str, accepts: Callable[[ColumnType], bool]) -> ColumnType | None:
    return next(filter(accepts, _list_forms(name)), None)


def _list_forms(name: str) -> Iterable[ColumnType]:
    kind = BY_SPARK.get(name)
    return () if kind is None else (kind, *(BY_SPARK[wider] for wider in kind.fits_in))
