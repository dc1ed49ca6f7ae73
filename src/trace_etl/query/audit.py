"""Record every query in Postgres state before its answer ends. Concurrent queries share a statement."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import structlog

from trace_etl.model.errors import TraceError, Unavailable
from trace_etl.query import metrics
from trace_etl.query.pins import Pin
from trace_etl.query.requests import TableReference
from trace_etl.state.db.pool import CONNECTION_ERRORS, ReusedConnections, make_pool
from trace_etl.state.feed import query_audit
from trace_etl.state.feed.query_audit import AuditRow

CLIENT_GONE = "client_gone"
_BATCH = 500
_MAX_UNRECORDED = 20_000
_RETRY_SECONDS = 0.5
_STOP_SECONDS = 10.0
_OPTIONS = "-c default_transaction_read_only=off"  # the role only reads by default
_log = structlog.stdlib.get_logger()


class AuditEntry(AuditRow):
    """A query that runs."""

    def name_tables(self, tables: list[TableReference]) -> None:
        """Record the names that the SQL has, in case that they are refused."""
        names = sorted({table.name for table in tables})
        self.datasets = [{"dataset": name, "dataset_version": None} for name in names]

    def name_pins(self, pins: list[Pin]) -> None:
        """Record the versions that the query reads."""
        self.datasets = [
            {"dataset": pin.name, "dataset_version": pin.dataset_version} for pin in pins
        ]


class AuditLog:
    """Writes a row for each query. A query ends when its row is committed, so a kill loses none."""

    def __init__(self, connections: ReusedConnections) -> None:
        self._connections = connections
        self._rows: list[AuditRow] = []
        self._waiting: list[asyncio.Future[None]] = []
        """One for each row, in the same order."""
        self._has_rows = asyncio.Event()

    @asynccontextmanager
    async def record(self, entry: AuditEntry) -> AsyncGenerator[AuditEntry]:
        """Record a query at the end of the block, with its outcome.

        Raises Unavailable if a query that succeeded cannot be recorded.
        """
        if len(self._rows) >= _MAX_UNRECORDED:
            metrics.QUERIES.labels(Unavailable.code).inc()
            raise _make_unavailable()
        started = time.monotonic()
        try:
            yield entry
        except TraceError as error:
            entry.outcome = error.code
            with suppress(Unavailable):  # the row is written later; the query's own error says more
                await self._finish(entry, started)
            raise
        except CONNECTION_ERRORS:
            entry.outcome = Unavailable.code
            self._finish(entry, started)
            raise
        except asyncio.CancelledError:
            entry.outcome = CLIENT_GONE
            self._finish(entry, started)
            raise
        except Exception:
            entry.outcome = TraceError.code
            self._finish(entry, started)
            raise
        else:
            await self._finish(entry, started)

    def _finish(self, entry: AuditEntry, started: float) -> "asyncio.Future[None]":
        """Hand over the row. Returns a future of its writing, which may raise Unavailable."""
        seconds = time.monotonic() - started
        entry.elapsed_ms = round(seconds * 1000, 1)
        metrics.QUERIES.labels(entry.outcome).inc()
        metrics.SECONDS.observe(seconds)
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rows.append(entry)
        self._waiting.append(written)
        self._has_rows.set()
        return written

    async def flush(self) -> None:
        """Write all collected rows."""
        while self._rows:
            batch = self._rows[:_BATCH]
            await self._write(batch)
            del self._rows[: len(batch)]
            for written in self._waiting[: len(batch)]:
                if not written.done():
                    written.set_result(None)
            del self._waiting[: len(batch)]

    async def _write(self, rows: list[AuditRow]) -> None:
        await self._connections.use(lambda conn: query_audit.record(conn, rows))

    async def keep_writing(self) -> None:
        """Write rows until this task is canceled."""
        while True:
            await self._has_rows.wait()
            self._has_rows.clear()
            try:
                await self._flush_again()
            except Exception as error:  # without a record, there are no answers
                _log.warning("audit_delayed", rows=len(self._rows), error=repr(error))
                self._refuse_waiting()
                self._has_rows.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _flush_again(self) -> None:
        """Write all rows, on a new connection if the kept one turns out to be broken."""
        try:
            await self.flush()
        except CONNECTION_ERRORS:
            await self.flush()

    def _refuse_waiting(self) -> None:
        """Fail the queries whose rows cannot be written now. The rows are kept, and written later."""
        for written in self._waiting:
            if not written.done():
                written.set_exception(_make_unavailable())
                written.exception()  # nothing waits for the row of a canceled query

    async def close(self) -> None:
        """Write the last rows."""
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._flush_again()
        except (TimeoutError, *CONNECTION_ERRORS) as error:
            _log.error("audit_lost", rows=len(self._rows), error=repr(error))


def _make_unavailable() -> Unavailable:
    return Unavailable("queries cannot be recorded: Postgres state does not answer; try again")


@asynccontextmanager
async def open_audit_log(dsn: str, *, is_durable: bool) -> AsyncGenerator[AuditLog]:
    """Write rows until the end of the block, on one connection. A clean stop loses none.

    If the rows need not be durable, a crash of Postgres within the next moment can lose them.
    """
    options = f"{_OPTIONS} -c synchronous_commit={'on' if is_durable else 'off'}"
    async with make_pool(dsn, size=1, options=options) as pool:
        connections = ReusedConnections(pool, max_idle=1)
        audit = AuditLog(connections)
        writer = asyncio.create_task(audit.keep_writing())
        try:
            yield audit
        finally:
            writer.cancel()
            await asyncio.wait({writer})
            await audit.close()
            await connections.close()
