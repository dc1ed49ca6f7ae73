"""A connection that writes batches of buffered datasets, and stays open between them."""

import re
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from uuid import UUID

from psycopg import DataError, IntegrityError
from psycopg.errors import UndefinedColumn, UndefinedTable

from trace_etl.data import buffers, connection
from trace_etl.data.buffers import BufferTable, RowBatch, WrittenBatch
from trace_etl.data.connection import Conn
from trace_etl.data.errors import DataUnavailable, ValueRefused, first_line

_COPY_LINE = re.compile(r"COPY \S+, line (\d+)(?:, column (\w+))?")


class BufferWriter:
    """Writes groups of batches, each group in one transaction. Not thread-safe."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stack = ExitStack()
        self._conn: Conn | None = None
        self._prepared: set[BufferTable] = set()

    def close(self) -> None:
        """Close the connection. The next call opens another one."""
        self._conn = None
        self._prepared.clear()
        self._stack.close()

    def find_written(self, publish_ids: Sequence[UUID]) -> dict[UUID, WrittenBatch]:
        """Return the results of the batches that were already written. Raises DataUnavailable."""
        with self._open_connection() as conn, connection.transaction(conn):
            return buffers.find_written_batches(conn, publish_ids)

    def write(self, table: BufferTable, batches: Sequence[RowBatch]) -> dict[UUID, WrittenBatch]:
        """Write batches of one table together, or none of them. Raises DataUnavailable, ValueRefused."""
        try:
            return self._write(table, batches)
        except (UndefinedTable, UndefinedColumn):
            # The table was dropped or changed after this connection prepared it.
            self.close()
            return self._write(table, batches)
        except (DataError, IntegrityError) as error:
            raise ValueRefused(_explain(error)) from error

    def _write(self, table: BufferTable, batches: Sequence[RowBatch]) -> dict[UUID, WrittenBatch]:
        with self._open_connection() as conn:
            with connection.transaction(conn):
                written = buffers.write_batches(
                    conn, table, batches, is_prepared=table in self._prepared
                )
            self._prepared.add(table)
            return written

    @contextmanager
    def _open_connection(self) -> Generator[Conn]:
        if self._conn is None or self._conn.closed:
            self.close()
            self._conn = self._stack.enter_context(connection.connect(self._dsn))
        try:
            yield self._conn
        except DataUnavailable:
            self.close()
            raise


def _explain(error: DataError | IntegrityError) -> str:
    """Return the reason with the line of the batch, which is the row of the COPY."""
    place = _COPY_LINE.search(error.diag.context or "")
    reason = f"Postgres cannot store a value: {error.diag.message_primary or first_line(error)}"
    if place is None:
        return reason
    column = f"{place[2]!r}: " if place[2] else ""
    return f"line {place[1]}: {column}{reason}"
