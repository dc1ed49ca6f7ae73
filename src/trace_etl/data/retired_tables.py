"""Tables of generations that nobody reads any more: found here, judged by the Dispatcher."""

from collections.abc import Sequence
from uuid import UUID

from psycopg import sql
from psycopg.errors import LockNotAvailable

from trace_etl.data.connection import Conn, transaction
from trace_etl.data.errors import DataUnavailable

_HELD = """
SELECT tablename FROM pg_tables
 WHERE schemaname = current_schema() AND tablename > %(after)s
   AND tablename ~ '^dataset_[0-9a-f]{32}_[0-9a-f]{16}$'
 ORDER BY tablename LIMIT %(limit)s
"""


def held(conn: Conn, *, after: str = "", limit: int) -> list[str]:
    """The names of tables that hold datasets, some at a time."""
    rows = conn.execute(_HELD, {"after": after, "limit": limit})
    return [row[0] for row in rows]


# Whoever wrote lately knows better than a judgement that is some moments old.
_WRITTEN = """
SELECT 1 FROM followers
 WHERE stream = ANY(%(versions)s) AND updated_at > now() - interval '1 hour'
 UNION ALL
SELECT 1 FROM append_fences
 WHERE dataset_version = ANY(%(versions)s) AND updated_at > now() - interval '1 hour'
"""
_FORGET = (
    "DELETE FROM followers WHERE stream = ANY(%(versions)s)",
    "DELETE FROM append_fences WHERE dataset_version = ANY(%(versions)s)",
    "DELETE FROM hot_trims WHERE table_name = ANY(%(tables)s)",
)


def drop(conn: Conn, tables: Sequence[str], versions: Sequence[UUID]) -> bool:
    """Drop the tables of one generation and what is known of its writers; False: not now."""
    values = {"tables": list(tables), "versions": list(versions)}
    try:
        with transaction(conn):
            conn.execute("SET LOCAL lock_timeout = '2s'")
            conn.execute("SET LOCAL client_min_messages = warning")
            for table in tables:
                _lock(conn, table)
            if conn.execute(_WRITTEN, values).fetchone():
                return False
            for table in tables:
                conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(table)))
            for query in _FORGET:
                conn.execute(query, values)
    except DataUnavailable as error:
        if isinstance(error.__cause__, LockNotAvailable):
            return False  # somebody reads or writes it at this very moment
        raise
    return True


def _lock(conn: Conn, table: str) -> None:
    """Before looking who wrote: one that is at it ends first, and one that comes makes it anew."""
    conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (table,))
    name = sql.Identifier(table)
    if conn.execute("SELECT to_regclass(%s)", (name.as_string(None),)).fetchone() != (None,):
        conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(name))
