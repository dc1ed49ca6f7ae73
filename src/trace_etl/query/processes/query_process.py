"""A query process: checks and runs one query at a time, under limits of the kernel."""

import ctypes
import os
import resource
import signal
import socket
import sys
from collections import OrderedDict
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import orjson

from trace_etl import landlock
from trace_etl.data.errors import DataUnavailable
from trace_etl.data.snapshots import Snapshot, open_snapshot
from trace_etl.model.errors import Unavailable
from trace_etl.model.result_formats import ResultFormat
from trace_etl.query.processes import frames
from trace_etl.query.requests import DatasetView, FilePart, Params, QueryLimits
from trace_etl.query.sql.engine import QueryRun, open_engine, parse_size, set_threads
from trace_etl.query.sql.results import Piece
from trace_etl.query.sql.sql_guard import SqlGuard

_PR_SET_PDEATHSIG = 1
_MAX_KEPT_ENGINES = 4
# Allocations outside DuckDB's own limit: stacks of threads, Arrow batches, encoded rows.
_OVERHEAD_BYTES = 192 * 2**20
_MEMORY_STATUS = Path("/proc/self/status")


def serve(channel: socket.socket, parent: int, limits: QueryLimits) -> None:
    """Answer requests until the service closes the channel."""
    _confine(parent)
    guard, engines, snapshots = SqlGuard(), Engines(), HeldSnapshot()
    engines.prepare(limits)
    base_memory = _measure_memory()
    max_memory = base_memory + _OVERHEAD_BYTES
    is_unfinished = False
    # A process that keeps much memory is replaced, but not between the calls of one query.
    while is_unfinished or _measure_memory() <= max_memory:
        frames.send(channel, frames.READY, b"")
        frame = frames.receive(channel)
        if frame is None:
            return
        request = orjson.loads(frame[1])
        is_unfinished = "views" not in request
        limits = QueryLimits(**request["limits"])
        max_memory = base_memory + parse_size(limits.memory) // 2 + _OVERHEAD_BYTES
        _limit_resources(limits, base_memory)
        try:
            if "views" in request:
                with snapshots.take() as snapshot:
                    if not request["is_checked"]:
                        guard.check(request["sql"], request["params"])
                    _run(channel, request, limits, engines, snapshot, guard)
            elif "open_snapshot" in request:
                snapshots.open(request["open_snapshot"], limits.seconds)
                frames.send(channel, frames.DONE, b"null")
            else:
                _check(channel, guard, request["sql"], request["params"])
        except Exception as error:  # the service raises it again
            frames.send(channel, frames.FAILED, frames.encode_error(error))
        if not is_unfinished and _measure_memory() > max_memory:
            engines.drop_kept()
        engines.prepare(limits)


class Engines:
    """Keeps engines that are expensive to open: a spare one, and the last ones with their views.

    The spare is opened before a query needs it, because this takes longer than a small query. The
    others answer further queries of the same caller over the same files.
    """

    def __init__(self) -> None:
        self._spare: duckdb.DuckDBPyConnection | None = None
        self._spare_limits: QueryLimits | None = None
        self._caller = ""
        self._kept: OrderedDict[bytes, duckdb.DuckDBPyConnection] = OrderedDict()

    def prepare(self, limits: QueryLimits) -> None:
        if self._spare is None:
            self._spare, self._spare_limits = open_engine(limits), limits

    @contextmanager
    def use(
        self, caller: str, key: bytes | None, limits: QueryLimits
    ) -> Generator[tuple[duckdb.DuckDBPyConnection, bool]]:
        """Yield an engine, and whether it has the views already. Afterwards keep it for the key.

        An engine without a key, or whose query failed, is closed. A use for another caller closes all
        engines.
        """
        if caller != self._caller:
            self.drop_kept()
            self._caller = caller
        kept = None if key is None else self._kept.pop(key, None)
        engine = kept or self._take(limits)
        try:
            yield engine, kept is not None
        except BaseException:
            engine.close()
            raise
        if key is None:
            engine.close()
            return
        self._kept[key] = engine
        if len(self._kept) > _MAX_KEPT_ENGINES:
            self._kept.popitem(last=False)[1].close()

    def drop_kept(self) -> None:
        while self._kept:
            self._kept.popitem()[1].close()

    def _take(self, limits: QueryLimits) -> duckdb.DuckDBPyConnection:
        engine, self._spare = self._spare, None
        prepared = self._spare_limits
        if engine is None or prepared is None:
            return open_engine(limits)
        if prepared.memory != limits.memory:
            engine.close()
            return open_engine(limits)
        if prepared.threads != limits.threads:
            set_threads(engine, limits.threads)
        return engine


class HeldSnapshot:
    """A snapshot of Postgres data, opened by one request and read by the next."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._snapshot: Snapshot | None = None

    def open(self, dsn: str, seconds: float) -> None:
        try:
            self._snapshot = self._stack.enter_context(open_snapshot(dsn, seconds))
        except DataUnavailable as error:
            raise Unavailable("Postgres data does not answer; try again") from error

    @contextmanager
    def take(self) -> Generator[Snapshot | None]:
        """Use the snapshot, if one was opened. It is closed at the end of the block."""
        with self._stack:
            snapshot, self._snapshot = self._snapshot, None
            yield snapshot


def _check(channel: socket.socket, guard: SqlGuard, sql: str, params: Params) -> None:
    frames.send(channel, frames.DONE, orjson.dumps(guard.check(sql, params)))


def _run(
    channel: socket.socket,
    request: dict[str, Any],
    limits: QueryLimits,
    engines: Engines,
    snapshot: Snapshot | None,
    guard: SqlGuard,
) -> None:
    form = ResultFormat(request["format"])
    is_stored = form is ResultFormat.COLUMNS
    views = [DatasetView(**view) for view in request["views"]]
    with engines.use(request["caller"], _make_key(request, limits), limits) as (engine, has_views):
        run = QueryRun(
            request["sql"],
            views,
            limits,
            request["data_dsn"],
            request["params"],
            engine,
            snapshot,
            has_views=has_views,
            stored_columns=guard.find_stored_columns(request["sql"]) if is_stored else None,
        )
        for piece in run.stream(form):
            _send_piece(channel, piece)
        frames.send(channel, frames.DONE, orjson.dumps(run.summary))


def _make_key(request: dict[str, Any], limits: QueryLimits) -> bytes | None:
    """Return which queries a caller's engine can answer; None if it reads a table."""
    views = request["views"]
    is_changing = any(view["table"] or view["rows"] is not None for view in views)
    if not request["caller"] or is_changing:
        return None
    return orjson.dumps([views, limits.memory, limits.threads])


def _send_piece(channel: socket.socket, piece: Piece) -> None:
    """Send a piece of the result without copying it. Blocks while the service does not read."""
    if isinstance(piece, FilePart):
        frames.send(channel, frames.FILE, orjson.dumps(piece))
        return
    view = memoryview(piece)
    for start in range(0, len(view), frames.MAX_ROWS_FRAME):
        frames.send(channel, frames.ROWS, view[start : start + frames.MAX_ROWS_FRAME])


def _confine(parent: int) -> None:
    """Forbid this process to write files and to start programs, and end it with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if landlock.version():
            landlock.restrict(write=[], execute=[])
    if os.getppid() != parent:
        sys.exit("the fork server died first")


def _limit_resources(limits: QueryLimits, base_memory: int) -> None:
    """Set the limits of the kernel for one query. Nothing that a query does can raise them.

    RLIMIT_DATA counts private writable memory: unlike RLIMIT_AS, it ignores what allocators reserve.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime + limits.cpu_seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
    memory = base_memory + parse_size(limits.memory) * 5 // 4 + _OVERHEAD_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (memory, resource.RLIM_INFINITY))


def _measure_memory() -> int:
    """Return the memory that RLIMIT_DATA counts, in bytes."""
    if not _MEMORY_STATUS.exists():
        return 0
    lines = _MEMORY_STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
