"""A pool of query processes. A query over its limits is killed, and its process replaced."""

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
import structlog

from trace_etl.model.errors import TraceError, Unavailable
from trace_etl.model.result_formats import ResultFormat
from trace_etl.query.errors import QueryCrashed, QueryTimedOut, QueryTooLarge
from trace_etl.query.processes import frames
from trace_etl.query.processes.channel import ProcessChannel
from trace_etl.query.processes.file_parts import read_file_part
from trace_etl.query.requests import DatasetView, FilePart, Params, QueryLimits, TableReference

_MAX_MESSAGE = 8192
_MAX_FRAME = 64 * 2**20
_STOP_SECONDS = 10
_PASSED_ON = (
    "PATH",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "LANG",
    "TZ",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
# Without these, both libraries reserve memory and start threads that the fork would copy.
_FIXED = {"OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
PROCESS_LOST = (asyncio.IncompleteReadError, ConnectionError)
_log = structlog.stdlib.get_logger()


ReceivePiece = Callable[[bytes], Awaitable[None]]
"""Takes a piece of an encoded result. The query waits until it returns."""


@dataclass(frozen=True)
class QuerySummary:
    """What a finished query returned."""

    columns: list[dict[str, str]]
    row_count: int
    truncated: bool


@dataclass
class QueryProcess:
    """A running query process, in the service. It answers one request at a time."""

    process_id: int
    channel: ProcessChannel
    ended: "asyncio.Future[int | None]"
    """Its exit status. None if it ended together with the fork server, for an unknown reason."""
    is_busy: bool = False
    is_ready: bool = False
    caller: str = ""
    """Whose query it ran last."""

    async def check(
        self, sql: str, limits: QueryLimits, params: Params = None
    ) -> list[TableReference]:
        """Return the datasets that a query reads. Raises Invalid."""
        request = {"sql": sql, "params": params}
        tables = orjson.loads(await self._ask(request, limits, _refuse_piece))
        return [TableReference(**table) for table in tables]

    async def open_snapshot(self, limits: QueryLimits, data_dsn: str) -> None:
        """Open the snapshot of Postgres data that `run` reads. Raises Unavailable."""
        await self._ask({"open_snapshot": data_dsn}, limits, _refuse_piece)
        self.is_busy = True  # until `run` has ended and closed it

    async def run(
        self,
        sql: str,
        views: list[DatasetView],
        limits: QueryLimits,
        data_dsn: str | None,
        receive: ReceivePiece,
        form: ResultFormat = ResultFormat.JSON,
        params: Params = None,
        caller: str = "",
        *,
        is_checked: bool,
    ) -> QuerySummary:
        """Run a query and pass on its result, piece by piece.

        Raises Invalid, QueryLimitExceeded, NoDataYet or Unavailable, also after some pieces.
        """
        request = {
            "sql": sql,
            "params": params,
            "views": views,
            "data_dsn": data_dsn,
            "format": form,
            "caller": caller,
            "is_checked": is_checked,
        }
        self.caller = caller
        files = frozenset(file for view in views for file in view.files)
        return QuerySummary(**orjson.loads(await self._ask(request, limits, receive, files)))

    async def become_ready(self) -> None:
        """Wait until the process has prepared for the next request. Raises PROCESS_LOST."""
        while not self.is_ready:
            kind, _ = await self.channel.read(_MAX_FRAME)
            self.is_ready = kind == frames.READY

    async def _ask(
        self,
        request: dict[str, Any],
        limits: QueryLimits,
        receive: ReceivePiece,
        files: frozenset[str] = frozenset(),
    ) -> bytes:
        self.is_busy = True
        content = orjson.dumps({**request, "limits": limits})
        try:
            await self.become_ready()
            self.is_ready = False
            self.channel.write(frames.REQUEST, content)
            kind, content = await self.channel.read(_MAX_FRAME)
            while kind in (frames.ROWS, frames.FILE):
                if kind == frames.FILE:
                    await _receive_file_part(content, receive, files)
                else:
                    await receive(content)  # the process waits when its socket is full
                kind, content = await self.channel.read(_MAX_FRAME)
        except PROCESS_LOST as error:
            raise _explain_end(await asyncio.shield(self.ended), limits) from error
        self.is_busy = False
        if kind == frames.FAILED:
            raise _make_error(content)
        return content


async def _receive_file_part(content: bytes, receive: ReceivePiece, files: frozenset[str]) -> None:
    part = FilePart(**orjson.loads(content))
    if part.path not in files:
        raise TraceError("a query process names a file that is not pinned")
    async for piece in read_file_part(part):
        await receive(piece)


async def _refuse_piece(piece: bytes) -> None:
    raise TraceError("a query process sends rows that were not requested")


def _make_error(content: bytes) -> TraceError:
    error, cause = frames.decode_error(content)
    if type(error) in (TraceError, Unavailable):
        _log.error("query_failed", code=error.code, cause=cause)
    return error


def _explain_end(status: int | None, limits: QueryLimits) -> TraceError:
    if status is None:
        return Unavailable("the process that ran the query ended with its fork server; try again")
    if status == -signal.SIGXCPU:
        return QueryTimedOut.of(f"used more than {limits.cpu_seconds:g} s of processor time")
    if status == -signal.SIGKILL:  # the kernel kills the largest process if it needs memory
        return QueryTooLarge.of(
            f"was killed, probably because the machine ran out of memory; the limit is {limits.memory}"
        )
    reason = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    return QueryCrashed.of(
        f"ended the process that ran it ({reason}), probably because it is nested too deeply or "
        f"needed more than {limits.memory} of memory"
    )


@dataclass
class QueryPool:
    """Starts processes through a fork server, and keeps those that are idle."""

    limits: QueryLimits
    """The usual limits. A process prepares for them; each request has its own."""
    in_use: int = 0
    """Processes that work on a query now."""
    _ids: "itertools.count[int]" = field(default_factory=itertools.count)
    _idle: list[QueryProcess] = field(default_factory=list[QueryProcess])
    _ended: "dict[int, asyncio.Future[int | None]]" = field(default_factory=dict[int, Any])
    _control: socket.socket | None = None
    _server: subprocess.Popen[bytes] | None = None

    @asynccontextmanager
    async def take(self, caller: str = "") -> AsyncGenerator[QueryProcess]:
        """Use one process, if possible the one that the caller used last and that kept its views.

        It is killed if a request is unfinished at the end of the block.
        """
        process = await self._find_idle(caller)
        self.in_use += 1
        try:
            yield process
        finally:
            self.in_use -= 1
            if process.is_busy:
                self._discard(process)
            else:
                self._idle.append(process)

    async def warm_up(self, processes: int) -> None:
        """Start processes, so that the first queries do not wait for them."""
        self._idle += [await self._start() for _ in range(processes)]

    async def _find_idle(self, caller: str) -> QueryProcess:
        while self._idle:
            # Otherwise the process that had the most time to prepare.
            known = (n for n, p in enumerate(self._idle) if caller and p.caller == caller)
            process = self._idle.pop(next(known, 0))
            if process.ended.done():  # its last READY may still be unread
                self._discard(process)
                continue
            try:
                await process.become_ready()
            except PROCESS_LOST:
                self._discard(process)
            except BaseException:
                self._discard(process)
                raise
            else:
                return process
        return await self._start()

    async def _start(self) -> QueryProcess:
        """Start a process and wait until it is ready. Raises Unavailable."""
        loop = asyncio.get_running_loop()
        process_id, ended = next(self._ids), loop.create_future()
        self._ended[process_id] = ended
        ours, theirs = socket.socketpair()
        _, channel = await loop.create_unix_connection(ProcessChannel, sock=ours)
        process = QueryProcess(process_id, channel, ended)
        command = orjson.dumps({"start": process_id, "limits": self.limits})
        try:
            with theirs:
                control = self._control or self._start_server()
                socket.send_fds(control, [command], [theirs.fileno()])
            await process.become_ready()
        except PROCESS_LOST as error:
            self._discard(process)
            raise Unavailable("no query process could be started; see the log") from error
        except BaseException:
            self._discard(process)
            raise
        return process

    def _discard(self, process: QueryProcess) -> None:
        process.channel.close()
        if not process.ended.done() and self._control is not None:
            with suppress(ConnectionError):  # the fork server and its processes are dead
                self._control.send(orjson.dumps({"kill": process.process_id}))

    def _start_server(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        with theirs:
            self._server = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "trace_etl.query.processes.fork_server",
                    str(theirs.fileno()),
                ],
                env={**passed_on, **_FIXED},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._control = ours
        asyncio.get_running_loop().add_reader(ours, self._read_reports, ours)
        return ours

    def _read_reports(self, control: socket.socket) -> None:
        try:
            report = control.recv(_MAX_MESSAGE)
        except BlockingIOError:
            return
        except ConnectionError:
            report = b""
        if report:
            ended = orjson.loads(report)
            self._ended.pop(ended["ended"]).set_result(ended["status"])
        else:
            status = self._server.poll() if self._server else None
            _log.error("query_fork_server_died", status=status)
            self._drop_server()

    def _drop_server(self) -> None:
        """Forget the fork server and its processes, which end with it. The next start makes a new one."""
        control, self._control = self._control, None
        if control is not None:
            asyncio.get_running_loop().remove_reader(control)
            control.close()
        for ended in self._ended.values():
            ended.set_result(None)
        self._ended.clear()

    async def close(self) -> None:
        """End all processes."""
        for process in self._idle:
            process.channel.close()
        self._drop_server()
        if self._server is not None:
            await asyncio.to_thread(self._server.wait, _STOP_SECONDS)


@asynccontextmanager
async def open_pool(processes: int, limits: QueryLimits) -> AsyncGenerator[QueryPool]:
    """Start the processes, and end them with the block."""
    pool = QueryPool(limits)
    try:
        await pool.warm_up(processes)
        yield pool
    finally:
        await pool.close()
