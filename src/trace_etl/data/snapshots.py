"""Several tables as of one instant, read over as many connections as their readers like."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from psycopg import Error, sql

from trace_etl.data import hot_reading
from trace_etl.data.connection import Conn, connect, transaction
from trace_etl.data.errors import DataUnavailable
from trace_etl.data.hot_reading import Condition

_AS_OF_NOW = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


@dataclass
class Snapshot:
    """An instant that stays until it is closed. Threads may read from it at once."""

    dsn: str
    conn: Conn
    mark: str
    seconds: float
    """How long one statement may take."""
    _open: list[Any] = field(default_factory=list[Any])

    def shape(self, table: str) -> list[tuple[str, str]]:
        """The columns of a table with their Postgres types; none if there is no such table."""
        return hot_reading.columns_of(self.conn, table)

    def ends(self, table: str, column: str) -> tuple[Any, Any]:
        """The least and the greatest value of a column; None and None if there is no row."""
        query = sql.SQL("SELECT min({0}), max({0}) FROM {1}").format(
            sql.Identifier(column), sql.Identifier(table)
        )
        row = self.conn.execute(query).fetchone()
        return (row[0], row[1]) if row else (None, None)

    def batches(self, table: str, schema: Any, conditions: Sequence[Condition]) -> Iterator[Any]:
        """The rows of a table that meet all conditions. Raises DataUnavailable."""
        query = hot_reading.selection(table, schema.names, conditions)
        with hot_reading.driver_connection(self.dsn) as conn, conn.cursor() as cursor:
            self._open.append(cursor)
            try:
                cursor.execute(_AS_OF_NOW)
                cursor.execute(f"SET TRANSACTION SNAPSHOT '{self.mark}'")
                cursor.execute(f"SET LOCAL statement_timeout = {int(self.seconds * 1000)}")
                cursor.execute(query)
                for batch in cursor.fetch_record_batch():
                    yield hot_reading.shaped(batch, schema)
            except hot_reading.DRIVER_ERRORS as error:
                first = str(error).strip().partition("\n")[0]
                raise DataUnavailable(f"Postgres data: {first}") from error
            finally:
                self._open.remove(cursor)

    def cancel(self) -> None:
        """Break off whatever is being read, from another thread."""
        for cursor in list(self._open):
            cursor.adbc_cancel()
        with suppress(Error):  # it may have ended by itself a moment ago
            self.conn.cancel_safe(timeout=1.0)


@contextmanager
def snapshot(dsn: str, seconds: float) -> Generator[Snapshot]:
    """The database as it is now. Raises DataUnavailable."""
    with connect(dsn) as conn, transaction(conn):
        conn.execute(_AS_OF_NOW)
        conn.execute(sql.SQL("SET LOCAL statement_timeout = {}").format(int(seconds * 1000)))
        row = conn.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        yield Snapshot(dsn, conn, str(row[0]), seconds)
