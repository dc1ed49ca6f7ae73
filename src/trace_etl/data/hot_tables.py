"""Hot tables: the newest rows of a chain's datasets, rewritten by range of blocks."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, LiteralString, cast

from psycopg import sql

from trace_etl.data import copy_encoding
from trace_etl.data.columns import postgres_type
from trace_etl.data.connection import Conn

_KEY = ("block_number", "transaction_index", "log_index")


# The role of the Query Service. It exists only in stacks that have a Query Service.
_LACKS_READ_GRANT = """
SELECT 1 FROM pg_roles
 WHERE rolname = 'trace_data_reader'
   AND NOT has_table_privilege(rolname, format('%%I', %(table)s::text), 'SELECT')
"""
_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
 WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


def ensure_table(conn: Conn, table: str, schema: Any, key: Sequence[str] = _KEY) -> None:
    """Create the table of an Arrow schema if it is missing. Its primary key forbids duplicates."""
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(
            sql.Identifier(field.name),
            # The type comes from a fixed list, never from a user's text.
            sql.SQL(cast("LiteralString", postgres_type(field.type))),
        )
        for field in schema
    )
    keys = sql.SQL(", ").join(sql.Identifier(name) for name in key if name in schema.names)
    lock_name(conn, table)
    conn.execute("SET LOCAL client_min_messages = warning")
    conn.execute(
        sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY ({}))").format(
            sql.Identifier(table), columns, keys
        )
    )
    grant_read(conn, table)


def add_column(conn: Conn, table: str, field: Any) -> None:
    """Add a nullable column of an Arrow field. It is null in existing rows."""
    kind = sql.SQL(cast("LiteralString", postgres_type(field.type)))
    query = sql.SQL("ALTER TABLE {} ADD COLUMN {} {}")
    conn.execute(query.format(sql.Identifier(table), sql.Identifier(field.name), kind))


def list_columns(conn: Conn, table: str) -> list[tuple[str, str]]:
    """List the columns with their Postgres types. The list is empty if the table does not exist."""
    quoted = sql.Identifier(table).as_string(None)
    return [(row[0], row[1]) for row in conn.execute(_COLUMNS, (quoted,))]


def lock_name(conn: Conn, table: str) -> None:
    """Lock a table's name until the transaction ends, whether or not the table exists."""
    conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (table,))


def grant_read(conn: Conn, table: str) -> None:
    """Let the Query Service read a table. The caller holds the lock of the table's name."""
    if conn.execute(_LACKS_READ_GRANT, {"table": table}).fetchone():
        grant = sql.SQL("GRANT SELECT ON {} TO trace_data_reader")
        conn.execute(grant.format(sql.Identifier(table)))


def delete_from_block(conn: Conn, table: str, first: int) -> int:
    """Delete the rows of block `first` and of all later blocks. Returns their number."""
    query = sql.SQL("DELETE FROM {} WHERE block_number >= %s").format(sql.Identifier(table))
    return conn.execute(query, (first,)).rowcount


_RECORD_TRIM = """
INSERT INTO hot_trims AS t (table_name, trimmed)
VALUES (%(table)s, int8multirange(int8range(%(start)s, %(end)s, '[]')))
ON CONFLICT (table_name) DO UPDATE SET trimmed = t.trimmed + excluded.trimmed
"""
_IS_TRIMMED = """
SELECT 1 FROM hot_trims
 WHERE table_name = %(table)s AND trimmed && int8range(%(start)s, %(end)s, '[]')
"""


def trim_range(conn: Conn, table: str, start: int, end: int) -> int:
    """Delete the rows of a range that a cold dataset holds, and record the range. Returns their number."""
    query = sql.SQL("DELETE FROM {} WHERE block_number BETWEEN %s AND %s")
    count = conn.execute(query.format(sql.Identifier(table)), (start, end)).rowcount
    conn.execute(_RECORD_TRIM, {"table": table, "start": start, "end": end})
    return count


def is_trimmed(conn: Conn, table: str, start: int, end: int) -> bool:
    """Whether any part of a range of blocks was trimmed."""
    values = {"table": table, "start": start, "end": end}
    return conn.execute(_IS_TRIMMED, values).fetchone() is not None


def copy_rows(conn: Conn, table: str, batches: Iterable[Any]) -> int:
    """Insert record batches of one schema by binary COPY. Returns the number of rows."""
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return 0
    names = sql.SQL(", ").join(map(sql.Identifier, first.schema.names))
    query = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(sql.Identifier(table), names)
    rows = 0
    with conn.cursor().copy(query) as copy:
        copy.write(copy_encoding.HEADER)
        for batch in chain([first], filled):
            copy.write(copy_encoding.encode_rows(batch))
            rows += batch.num_rows
        copy.write(copy_encoding.TRAILER)
    return rows
