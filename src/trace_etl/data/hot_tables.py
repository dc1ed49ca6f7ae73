"""Hot tables: the newest rows of a chain's datasets, rewritten by range."""

from collections.abc import Sequence
from typing import Any, LiteralString, cast

from psycopg import sql

from trace_etl.data import copy_encoding
from trace_etl.data.columns import postgres_type
from trace_etl.data.connection import Conn

_KEY = ("block_number", "transaction_index", "log_index")


# The Query Service's role, where there is one.
_NOT_READABLE = """
SELECT 1 FROM pg_roles
 WHERE rolname = 'trace_data_reader'
   AND NOT has_table_privilege(rolname, format('%%I', %(table)s::text), 'SELECT')
"""


def ensure(conn: Conn, table: str, schema: Any, key: Sequence[str] = _KEY) -> None:
    """Make the table of an Arrow schema if it is missing. Its key forbids a row twice."""
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(
            sql.Identifier(field.name),
            # One of a few names of types and perhaps two numbers: nothing a user writes.
            sql.SQL(cast("LiteralString", postgres_type(field.type))),
        )
        for field in schema
    )
    keys = sql.SQL(", ").join(sql.Identifier(name) for name in key if name in schema.names)
    conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (table,))
    conn.execute("SET LOCAL client_min_messages = warning")
    conn.execute(
        sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY ({}))").format(
            sql.Identifier(table), columns, keys
        )
    )
    let_read(conn, table)


def let_read(conn: Conn, table: str) -> None:
    """Open a table to the Query Service. The caller holds the table's lock."""
    if conn.execute(_NOT_READABLE, {"table": table}).fetchone():
        grant = sql.SQL("GRANT SELECT ON {} TO trace_data_reader")
        conn.execute(grant.format(sql.Identifier(table)))


def delete_from(conn: Conn, table: str, first: int) -> int:
    """Take away every row from a block on; how many there were."""
    query = sql.SQL("DELETE FROM {} WHERE block_number >= %s").format(sql.Identifier(table))
    return conn.execute(query, (first,)).rowcount


_TRIM = """
INSERT INTO hot_trims AS t (table_name, trimmed)
VALUES (%(table)s, int8multirange(int8range(%(start)s, %(end)s, '[]')))
ON CONFLICT (table_name) DO UPDATE SET trimmed = t.trimmed + excluded.trimmed
"""
_TRIMMED = """
SELECT 1 FROM hot_trims
 WHERE table_name = %(table)s AND trimmed && int8range(%(start)s, %(end)s, '[]')
"""


def trim(conn: Conn, table: str, start: int, end: int) -> int:
    """Take away rows of a range that is kept elsewhere, and remember it; how many there were."""
    query = sql.SQL("DELETE FROM {} WHERE block_number BETWEEN %s AND %s")
    count = conn.execute(query.format(sql.Identifier(table)), (start, end)).rowcount
    conn.execute(_TRIM, {"table": table, "start": start, "end": end})
    return count


def is_trimmed(conn: Conn, table: str, start: int, end: int) -> bool:
    """Whether rows of a range of blocks were taken away because they are kept elsewhere."""
    values = {"table": table, "start": start, "end": end}
    return conn.execute(_TRIMMED, values).fetchone() is not None


def copy_in(conn: Conn, table: str, batches: Sequence[Any]) -> int:
    """Add rows by binary COPY; how many there were."""
    filled = [batch for batch in batches if batch.num_rows]
    if not filled:
        return 0
    names = sql.SQL(", ").join(map(sql.Identifier, filled[0].schema.names))
    query = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(sql.Identifier(table), names)
    with conn.cursor().copy(query) as copy:
        copy.write(copy_encoding.HEADER)
        for batch in filled:
            copy.write(copy_encoding.rows(batch))
        copy.write(copy_encoding.TRAILER)
    return sum(batch.num_rows for batch in filled)
