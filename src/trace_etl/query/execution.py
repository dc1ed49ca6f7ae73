"""Check, pin and run a query in a query process, for any kind of caller."""

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import orjson
import structlog

from trace_etl.http.fair_slots import FairSlots
from trace_etl.model.result_formats import ResultFormat
from trace_etl.query.access import QueryAccess
from trace_etl.query.audit import AuditEntry
from trace_etl.query.pins import Pin, PinnedFiles
from trace_etl.query.processes.pool import (
    QueryPool,
    QueryProcess,
    QuerySummary,
    ReceivePiece,
)
from trace_etl.query.requests import DatasetView, Params, QueryLimits, TableReference
from trace_etl.query.streaming import PINNED_HEADER, ResultStream, limit_time
from trace_etl.state.db.pool import StateReader

_MAX_KNOWN_TEXTS, _MAX_KNOWN_CHARACTERS = 256, 16_384
_URL_MARGIN_SECONDS = 60  # a margin for the clocks of this machine and of the store
_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class Query:
    """A query of a caller, and its limits."""

    sql: str
    params: Params
    format: ResultFormat
    limits: QueryLimits
    seconds: float
    """How long it may work. This clock stops while the client reads."""
    stream_seconds: float
    access: QueryAccess
    entry: AuditEntry


@dataclass(frozen=True)
class KnownTexts:
    """The datasets of texts that a query process has accepted, so that they can be pinned at once.

    The process that runs such a text checks it again, so an entry here gives access to nothing.
    """

    _tables: OrderedDict[str, list[TableReference]] = field(
        default_factory=OrderedDict[str, list[TableReference]]
    )

    def find(self, sql: str) -> list[TableReference] | None:
        return self._tables.get(sql)

    def add(self, sql: str, tables: list[TableReference]) -> None:
        if len(sql) > _MAX_KNOWN_CHARACTERS:
            return
        self._tables[sql] = tables
        if len(self._tables) > _MAX_KNOWN_TEXTS:
            self._tables.popitem(last=False)


@dataclass(frozen=True)
class QueryExecutor:
    """Runs queries in processes, with limits for each query and slots shared between callers."""

    state: StateReader
    processes: QueryPool
    files: PinnedFiles
    slots: FairSlots
    wait_seconds: float
    """How long a query may wait for a slot."""
    data_dsn: str | None
    texts: KnownTexts = field(default_factory=KnownTexts)

    async def answer(self, query: Query) -> bytes:
        """Return the whole reply as JSON. Raises the errors of each step."""
        pieces: list[bytes] = []

        async def collect(piece: bytes) -> None:
            pieces.append(piece)

        finished = await self.execute(query, collect)
        rows = orjson.Fragment(b"[" + b"".join(pieces) + b"]")
        return orjson.dumps({"rows": rows, **finished.describe()})

    async def stream(self, query: Query, output: ResultStream) -> None:
        """Send the result while the query runs. Raises the errors of each step."""
        is_json = query.format is ResultFormat.JSON
        prefix = b'{"rows":[' if is_json else b""

        async def send(piece: bytes) -> None:
            nonlocal prefix
            begin, prefix = prefix, b""
            await output.send(begin + piece)

        def announce(pins: list[Pin]) -> None:
            output.headers[PINNED_HEADER] = orjson.dumps([p.describe() for p in pins]).decode()

        finished = await self.execute(query, send, announce)
        if is_json:
            await send(b"]," + orjson.dumps(finished.describe())[1:])

    async def execute(
        self,
        query: Query,
        receive: ReceivePiece,
        announce: Callable[[list[Pin]], None] = lambda _: None,
    ) -> "FinishedQuery":
        """Check, pin and run a query within its time. Raises QueryTimedOut."""
        started, entry = time.monotonic(), query.entry

        async def count_and_receive(piece: bytes) -> None:
            entry.byte_count += len(piece)
            await receive(piece)

        async with (
            self.slots.take(query.access.slot_key, self.wait_seconds),
            self.processes.take(query.access.slot_key) as process,
            limit_time(query.seconds, query.stream_seconds) as clock,
        ):
            limits = replace(query.limits, threads=self._share_cores(query.limits.threads))
            known = self.texts.find(query.sql)
            tables = await self._check(process, query, limits) if known is None else known
            entry.name_tables(tables)
            pins = await self._pin(process, query, tables)
            entry.name_pins(pins)
            views = await self.make_views(pins, query.stream_seconds)
            announce(pins)
            send = clock.stop_during(count_and_receive)
            summary = await process.run(
                query.sql,
                views,
                limits,
                self.data_dsn,
                send,
                query.format,
                query.params,
                query.access.slot_key,
                is_checked=known is None,
            )
        entry.row_count = summary.row_count
        finished = FinishedQuery(summary, pins, round((time.monotonic() - started) * 1000, 1))
        _log_answer(query, finished)
        return finished

    def _share_cores(self, max_threads: int) -> int:
        """Return how many threads a query that starts now may use: its share of the cores.

        More threads than cores only make queries wait for each other.
        """
        cores = os.cpu_count() or 1
        return max(1, min(max_threads, cores // max(1, self.processes.in_use)))

    async def _check(
        self, process: QueryProcess, query: Query, limits: QueryLimits
    ) -> list[TableReference]:
        """Return the datasets that a query names. Raises Invalid, but only to authorized callers."""
        await query.access.authorize(self.state)
        tables = await process.check(query.sql, limits, query.params)
        self.texts.add(query.sql, tables)
        return tables

    async def _pin(
        self, process: QueryProcess, query: Query, tables: list[TableReference]
    ) -> list[Pin]:
        pins = await query.access.pin(self.state, tables)
        if self.data_dsn is not None and any(pin.covered_blocks is not None for pin in pins):
            # Rows move from tables to partitions. The pin must be later than the snapshot, so that
            # it has every partition whose rows the snapshot no longer has.
            await process.open_snapshot(query.limits, self.data_dsn)
            pins = await query.access.pin(self.state, tables)
        return pins

    async def make_views(self, pins: list[Pin], seconds: float) -> list[DatasetView]:
        """List the files of pins, with addresses that are valid for this many seconds. Raises Invalid."""
        life = timedelta(seconds=seconds + _URL_MARGIN_SECONDS)

        def make() -> list[DatasetView]:
            return [self.files.make_view(pin, life) for pin in pins]

        # A few known prefixes need no reading. Saving the change of threads matters to small queries.
        return make() if self.files.has_few(pins) else await asyncio.to_thread(make)


@dataclass(frozen=True)
class FinishedQuery:
    """What a query returned, and what it read."""

    summary: QuerySummary
    pins: list[Pin]
    elapsed_ms: float

    def describe(self) -> dict[str, Any]:
        """Return the fields of the reply, apart from the rows."""
        pinned = [p.describe() for p in self.pins]
        return {**vars(self.summary), "elapsed_ms": self.elapsed_ms, "pinned": pinned}


def _log_answer(query: Query, finished: FinishedQuery) -> None:
    _log.info(
        "query_answered",
        datasets=[p.name for p in finished.pins],
        format=query.format,
        rows=finished.summary.row_count,
        truncated=finished.summary.truncated,
        elapsed_ms=finished.elapsed_ms,
    )
