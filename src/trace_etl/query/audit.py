"""Record every query in Postgres state, many in one transaction, without delaying the answers."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import structlog

from trace_etl.model.errors import TraceError, Unavailable
from trace_etl.query import metrics
from trace_etl.query.pins import Pin
from trace_etl.query.requests import TableReference
from trace_etl.state.db.pool import CONNECTION_ERRORS, Pool, transaction
from trace_etl.state.feed import query_audit
from trace_etl.state.feed.query_audit import AuditRow

CLIENT_GONE = "client_gone"
_BATCH = 500
_MAX_UNRECORDED = 20_000
_FLUSH_SECONDS = 0.5
_STOP_SECONDS = 10.0
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
    """Collects the rows of finished queries, and writes them in the background."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._rows: list[AuditRow] = []
        self._has_rows = asyncio.Event()

    @contextmanager
    def record(self, entry: AuditEntry) -> Generator[AuditEntry]:
        """Record a query at the end of the block, with its outcome. Raises Unavailable when full."""
        if len(self._rows) >= _MAX_UNRECORDED:
            metrics.QUERIES.labels(Unavailable.code).inc()
            raise Unavailable(
                "queries cannot be recorded: Postgres state does not answer; try again"
            )
        started = time.monotonic()
        try:
            yield entry
        except TraceError as error:
            entry.outcome = error.code
            raise
        except CONNECTION_ERRORS:
            entry.outcome = Unavailable.code
            raise
        except asyncio.CancelledError:
            entry.outcome = CLIENT_GONE
            raise
        except Exception:
            entry.outcome = TraceError.code
            raise
        finally:
            seconds = time.monotonic() - started
            entry.elapsed_ms = round(seconds * 1000, 1)
            self._add(entry)
            metrics.QUERIES.labels(entry.outcome).inc()
            metrics.SECONDS.observe(seconds)

    def _add(self, row: AuditRow) -> None:
        self._rows.append(row)
        self._has_rows.set()

    async def flush(self) -> None:
        """Write all collected rows."""
        while self._rows:
            batch = self._rows[:_BATCH]
            async with transaction(self._pool) as conn:
                await query_audit.record(conn, batch)
            del self._rows[: len(batch)]

    async def keep_writing(self) -> None:
        """Write rows until this task is canceled."""
        while True:
            await self._has_rows.wait()
            self._has_rows.clear()
            try:
                await self.flush()
            except CONNECTION_ERRORS as error:
                _log.warning("audit_delayed", rows=len(self._rows), error=repr(error))
                self._has_rows.set()
            await asyncio.sleep(_FLUSH_SECONDS)

    async def close(self) -> None:
        """Write the last rows."""
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self.flush()
        except (TimeoutError, *CONNECTION_ERRORS) as error:
            _log.error("audit_lost", rows=len(self._rows), error=repr(error))


@asynccontextmanager
async def open_audit_log(pool: Pool) -> AsyncGenerator[AuditLog]:
    """Write rows until the end of the block. A clean stop loses none."""
    audit = AuditLog(pool)
    writer = asyncio.create_task(audit.keep_writing())
    try:
        yield audit
    finally:
        writer.cancel()
        await asyncio.wait({writer})
        await audit.close()
