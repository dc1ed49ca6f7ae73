"""A query process: checks and runs one query at a time, under limits of the kernel."""

import ctypes
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import orjson

from trace_etl import landlock
from trace_etl.query import frames
from trace_etl.query.engine import QueryResult, QueryRun, open_engine, parse_size
from trace_etl.query.requests import DatasetView, QueryLimits
from trace_etl.query.sql_guard import SqlGuard

_PR_SET_PDEATHSIG = 1
_FRAME_BYTES = 512 * 1024
# Allocations outside DuckDB's own limit: stacks of threads, Arrow batches, encoded rows.
_OVERHEAD_BYTES = 192 * 2**20
_MEMORY_STATUS = Path("/proc/self/status")


def serve(channel: socket.socket, parent: int, limits: QueryLimits) -> None:
    """Answer requests until the service closes the channel."""
    _confine(parent)
    guard, engines = SqlGuard(), SpareEngine()
    engines.prepare(limits)
    base_memory = _used_memory()
    max_memory = base_memory + _OVERHEAD_BYTES
    while _used_memory() <= max_memory:  # a process that keeps much memory is replaced
        frames.send(channel, frames.READY, b"")
        frame = frames.receive(channel)
        if frame is None:
            return
        request = orjson.loads(frame[1])
        limits = QueryLimits(**request["limits"])
        max_memory = base_memory + parse_size(limits.memory) // 2 + _OVERHEAD_BYTES
        _limit_resources(limits, base_memory)
        try:
            if "views" in request:
                _run(channel, request, limits, engines.take(limits))
            else:
                _check(channel, guard, request["sql"])
        except Exception as error:  # the service raises it again
            frames.send(channel, frames.FAILED, frames.encode_error(error))
        engines.prepare(limits)


class SpareEngine:
    """Opens an engine before the next query needs it, because this takes longer than a small query."""

    def __init__(self) -> None:
        self._engine: duckdb.DuckDBPyConnection | None = None
        self._key: tuple[str, int] | None = None

    def prepare(self, limits: QueryLimits) -> None:
        if self._engine is None:
            self._engine, self._key = open_engine(limits), (limits.memory, limits.threads)

    def take(self, limits: QueryLimits) -> duckdb.DuckDBPyConnection:
        engine, self._engine = self._engine, None
        if engine is not None and self._key == (limits.memory, limits.threads):
            return engine
        return open_engine(limits)


def _check(channel: socket.socket, guard: SqlGuard, sql: str) -> None:
    tables = [asdict(table) for table in guard.check(sql)]
    frames.send(channel, frames.DONE, orjson.dumps(tables))


def _run(
    channel: socket.socket,
    request: dict[str, Any],
    limits: QueryLimits,
    engine: duckdb.DuckDBPyConnection,
) -> None:
    views = [DatasetView(**view) for view in request["views"]]
    with engine:
        run = QueryRun(request["sql"], views, limits, request["data_dsn"], engine)
        result = run.execute()
        for chunk in _join_rows(result):
            frames.send(channel, frames.ROWS, chunk)
        summary = {
            "columns": result.columns,
            "row_count": len(result.rows),
            "truncated": result.truncated,
        }
        frames.send(channel, frames.DONE, orjson.dumps(summary))


def _join_rows(result: QueryResult) -> Iterator[bytes]:
    """Yield the rows, separated by commas, in pieces of limited size."""
    text = b",".join(result.rows)
    for start in range(0, len(text), _FRAME_BYTES):
        yield text[start : start + _FRAME_BYTES]


def _confine(parent: int) -> None:
    """Give up what a query process does not need: writing, programs, a life without the service."""
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


def _used_memory() -> int:
    """Return the memory that RLIMIT_DATA counts, in bytes."""
    if not _MEMORY_STATUS.exists():
        return 0
    lines = _MEMORY_STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
