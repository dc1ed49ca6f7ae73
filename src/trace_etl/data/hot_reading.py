"""Hot tables into Arrow: one statement, so that a reader sees one state of the chain."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import adbc_driver_postgresql.dbapi as _adbc  # pyright: ignore[reportMissingTypeStubs]
from psycopg import sql

from trace_etl.data.connection import Conn, connect

_OPERATORS: dict[str, LiteralString] = {name: name for name in ("=", ">", ">=", "<", "<=", "IN")}
_driver: Any = _adbc  # it ships no types
DRIVER_ERRORS: tuple[type[Exception], ...] = (_driver.Error,)
IS_NOT_NULL = "IS NOT NULL"
_SHAPE = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
 WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


@dataclass(frozen=True)
class Condition:
    """A comparison of a column with a value; with a tuple of values for IN, with none for null."""

    column: str
    operator: str
    value: Any


def shape(dsn: str, table: str) -> list[tuple[str, str]]:
    """The columns with their Postgres types; none if there is no such table."""
    with connect(dsn) as conn:
        return columns_of(conn, table)


def columns_of(conn: Conn, table: str) -> list[tuple[str, str]]:
    """The same, on a connection that is open."""
    return [(row[0], row[1]) for row in conn.execute(_SHAPE, (_quoted(table),))]


def is_longer_than(dsn: str, table: str, conditions: Sequence[Condition], rows: int) -> bool:
    """Whether more rows than that meet the conditions; looks at no more of them."""
    inner = sql.SQL("SELECT 1 FROM {} {} LIMIT {}").format(
        sql.Identifier(table), _where(conditions), sql.Literal(rows + 1)
    )
    with connect(dsn) as conn:
        found = conn.execute(sql.SQL("SELECT count(*) FROM ({}) AS found").format(inner)).fetchone()
    return found is not None and found[0] > rows


def batches(dsn: str, table: str, schema: Any, conditions: Sequence[Condition]) -> Iterator[Any]:
    """The rows that meet all conditions, as record batches.

    `schema` is the table's; what the driver calls otherwise becomes what it says.
    """
    text = selection(table, schema.names, conditions)
    with driver_connection(dsn) as conn, conn.cursor() as cursor:
        cursor.execute(text)
        for batch in cursor.fetch_record_batch():
            yield shaped(batch, schema)


def selection(table: str, columns: Sequence[str], conditions: Sequence[Condition]) -> str:
    """The SQL of a read. Values are quoted, not bound: with parameters the driver goes by rows."""
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    query = sql.SQL("SELECT {} FROM {} {}").format(names, sql.Identifier(table), _where(conditions))
    return query.as_string(None)


def driver_connection(dsn: str) -> Any:
    """A connection of the driver that reads into Arrow; its errors are DRIVER_ERRORS."""
    return _driver.connect(dsn)


def shaped(batch: Any, schema: Any) -> Any:
    """A batch of the driver with our types: it reads numerics as text."""
    return batch if batch.schema == schema else batch.cast(schema)


def _where(conditions: Sequence[Condition]) -> sql.Composable:
    if not conditions:
        return sql.SQL("")
    return sql.SQL("WHERE {}").format(sql.SQL(" AND ").join(map(_condition, conditions)))


def _condition(one: Condition) -> sql.Composable:
    if one.operator == IS_NOT_NULL:
        return sql.SQL("{} IS NOT NULL").format(sql.Identifier(one.column))
    operator = _OPERATORS[one.operator]
    if operator == "IN":
        values = sql.SQL(", ").join(map(_literal, one.value))
        return sql.SQL("{} IN ({})").format(sql.Identifier(one.column), values)
    return sql.SQL("{} {} {}").format(
        sql.Identifier(one.column), sql.SQL(operator), _literal(one.value)
    )


def _literal(value: Any) -> sql.Composable:
    return sql.Literal(bytes(value) if isinstance(value, bytearray) else value)


def _quoted(table: str) -> str:
    return sql.Identifier(table).as_string(None)
