"""Read a table of Postgres data into Arrow. One statement reads it, so the reader sees one state of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import adbc_driver_manager  # pyright: ignore[reportMissingTypeStubs]
from psycopg import sql

from trace_etl.data.columns import cast_batch
from trace_etl.data.connection import connect

_OPERATORS: dict[str, LiteralString] = {name: name for name in ("=", ">", ">=", "<", "<=", "IN")}
_manager: Any = adbc_driver_manager  # the driver ships no types
DRIVER_ERRORS: tuple[type[Exception], ...] = (_manager.Error,)
NOT_BETWEEN = "NOT BETWEEN"


@dataclass(frozen=True)
class Condition:
    """Compares a column with a value. IN takes a tuple of values.

    NOT BETWEEN takes the first and the last value of a range.
    """

    column: str
    operator: str
    value: Any


def has_more_rows(dsn: str, table: str, conditions: Sequence[Condition], *, than: int) -> bool:
    """Whether more than `than` rows meet the conditions. Reads at most one row more than that."""
    inner = sql.SQL("SELECT 1 FROM {} {} LIMIT {}").format(
        sql.Identifier(table), _make_where(conditions), sql.Literal(than + 1)
    )
    with connect(dsn) as conn:
        row = conn.execute(sql.SQL("SELECT count(*) FROM ({}) AS found").format(inner)).fetchone()
    return row is not None and row[0] > than


def read_batches(
    dsn: str, table: str, schema: Any, conditions: Sequence[Condition]
) -> Iterator[Any]:
    """Read the rows that meet all conditions, as record batches of the given schema."""
    statement = select_statement(table, schema.names, conditions)
    with connect_driver(dsn) as conn, conn.cursor() as cursor:
        cursor.execute(statement)
        for batch in cursor.fetch_record_batch():
            yield cast_batch(batch, schema)


def select_statement(table: str, columns: Sequence[str], conditions: Sequence[Condition]) -> str:
    """Return the SQL of a read.

    Values are quoted, not bound: with bound parameters the driver fetches row by row.
    """
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    query = sql.SQL("SELECT {} FROM {} {}").format(
        names, sql.Identifier(table), _make_where(conditions)
    )
    return query.as_string(None)


def connect_driver(dsn: str) -> Any:
    """Open a connection of the driver that reads into Arrow. It raises DRIVER_ERRORS."""
    # Importing it imports polars, if that is installed: every process of Spark would pay for it.
    import adbc_driver_postgresql.dbapi  # pyright: ignore[reportMissingTypeStubs]

    driver: Any = adbc_driver_postgresql.dbapi
    return driver.connect(dsn)


def _make_where(conditions: Sequence[Condition]) -> sql.Composable:
    if not conditions:
        return sql.SQL("")
    return sql.SQL("WHERE {}").format(sql.SQL(" AND ").join(map(_compare, conditions)))


def _compare(condition: Condition) -> sql.Composable:
    column = sql.Identifier(condition.column)
    if condition.operator == NOT_BETWEEN:
        first, last = map(_quote_literal, condition.value)
        return sql.SQL("{} NOT BETWEEN {} AND {}").format(column, first, last)
    operator = _OPERATORS[condition.operator]
    if operator == "IN":
        values = sql.SQL(", ").join(map(_quote_literal, condition.value))
        return sql.SQL("{} IN ({})").format(column, values)
    return sql.SQL("{} {} {}").format(column, sql.SQL(operator), _quote_literal(condition.value))


def _quote_literal(value: Any) -> sql.Composable:
    return sql.Literal(bytes(value) if isinstance(value, bytearray) else value)
