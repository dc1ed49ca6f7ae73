"""Find and drop the tables of retired generations. The Dispatcher decides which ones are retired."""

from collections.abc import Sequence
from uuid import UUID

from psycopg import sql
from psycopg.errors import LockNotAvailable

from trace_etl.data import hot_tables
from trace_etl.data.connection import Conn, transaction
from trace_etl.data.errors import DataUnavailable

_DATASET_TABLES = """
SELECT tablename FROM pg_tables
 WHERE schemaname = current_schema() AND tablename > %(after)s
   AND tablename ~ '^dataset_[0-9a-f]{32}_[0-9a-f]{16}$'
 ORDER BY tablename LIMIT %(limit)s
"""


def list_dataset_tables(conn: Conn, *, after: str = "", limit: int) -> list[str]:
    """List the names of tables that hold datasets: one page, after the name `after`."""
    rows = conn.execute(_DATASET_TABLES, {"after": after, "limit": limit})
    return [row[0] for row in rows]


# The table may have come into use after the Dispatcher's decision: a recent write shows this.
_RECENT_WRITE = """
SELECT 1 FROM followers
 WHERE stream = ANY(%(versions)s) AND updated_at > now() - interval '1 hour'
 UNION ALL
SELECT 1 FROM append_fences
 WHERE dataset_version = ANY(%(versions)s) AND updated_at > now() - interval '1 hour'
"""
_DELETE_RECORDS = (
    "DELETE FROM followers WHERE stream = ANY(%(versions)s)",
    "DELETE FROM append_fences WHERE dataset_version = ANY(%(versions)s)",
    "DELETE FROM hot_trims WHERE table_name = ANY(%(tables)s)",
)


def drop_tables(conn: Conn, tables: Sequence[str], versions: Sequence[UUID]) -> bool:
    """Drop the tables of one generation and the records of its writers.

    Returns False, and drops nothing, if a table is in use.
    """
    values = {"tables": list(tables), "versions": list(versions)}
    try:
        with transaction(conn):
            conn.execute("SET LOCAL lock_timeout = '2s'")
            conn.execute("SET LOCAL client_min_messages = warning")
            for table in tables:
                _lock_table(conn, table)
            if conn.execute(_RECENT_WRITE, values).fetchone():
                return False
            for table in tables:
                conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(table)))
            for query in _DELETE_RECORDS:
                conn.execute(query, values)
    except DataUnavailable as error:
        if isinstance(error.__cause__, LockNotAvailable):
            return False  # another session is reading or writing the table
        raise
    return True


def _lock_table(conn: Conn, table: str) -> None:
    """Wait for the current writer and block the next one. The next writer creates the table again."""
    hot_tables.lock_name(conn, table)
    name = sql.Identifier(table)
    if conn.execute("SELECT to_regclass(%s)", (name.as_string(None),)).fetchone() != (None,):
        conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(name))
