"""Read several tables as of one instant, over several connections."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from trace_etl.data import hot_tables, table_reader
from trace_etl.data.columns import cast_batch
from trace_etl.data.connection import Conn, connect, transaction
from trace_etl.data.errors import DataUnavailable, first_line
from trace_etl.data.table_reader import Condition

_READ_ONLY = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
# A reader may be killed at any time. Without this setting, Postgres notices only when it sends rows.
_NOTICE_LOST_CLIENT = "SET LOCAL client_connection_check_interval = '1s'"


@dataclass
class Snapshot:
    """The database at one instant, until the snapshot is closed. Threads may read concurrently."""

    dsn: str
    conn: Conn
    snapshot_id: str
    seconds: float
    """The timeout of one statement."""

    def list_columns(self, table: str) -> list[tuple[str, str]]:
        """List the columns with their Postgres types. Empty if the table does not exist."""
        return hot_tables.list_columns(self.conn, table)

    def read_min_max(self, table: str, column: str) -> tuple[Any, Any]:
        """Return the minimum and maximum of a column; (None, None) if the table has no rows."""
        query = sql.SQL("SELECT min({0}), max({0}) FROM {1}").format(
            sql.Identifier(column), sql.Identifier(table)
        )
        row = self.conn.execute(query).fetchone()
        return (row[0], row[1]) if row else (None, None)

    def read_batches(
        self, table: str, schema: Any, conditions: Sequence[Condition]
    ) -> Iterator[Any]:
        """Read the rows that meet all conditions. Raises DataUnavailable."""
        query = table_reader.select_statement(table, schema.names, conditions)
        with table_reader.connect_driver(self.dsn) as conn, conn.cursor() as cursor:
            try:
                cursor.execute(_READ_ONLY)
                cursor.execute(f"SET TRANSACTION SNAPSHOT '{self.snapshot_id}'")
                cursor.execute(f"SET LOCAL statement_timeout = {int(self.seconds * 1000)}")
                cursor.execute(_NOTICE_LOST_CLIENT)
                cursor.execute(query)
                for batch in cursor.fetch_record_batch():
                    yield cast_batch(batch, schema)
            except table_reader.DRIVER_ERRORS as error:
                raise DataUnavailable(f"Postgres data: {first_line(error)}") from error


@contextmanager
def open_snapshot(dsn: str, seconds: float) -> Generator[Snapshot]:
    """Open a snapshot of the current state. Raises DataUnavailable."""
    with connect(dsn) as conn, transaction(conn):
        conn.execute(_READ_ONLY)
        conn.execute(sql.SQL("SET LOCAL statement_timeout = {}").format(int(seconds * 1000)))
        conn.execute(_NOTICE_LOST_CLIENT)
        row = conn.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        yield Snapshot(dsn, conn, str(row[0]), seconds)
