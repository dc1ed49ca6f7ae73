"""Start services through the fork server, which takes a third of the processor time."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trace_etl.lite.errors import ServiceFailed
from trace_etl.lite.processes.fork_server import ServiceStart
from trace_etl.process import WITHOUT_THREADS

_MAX_ANSWER = 32
_WITHHELD = ("AWS_", "TRACE_")  # may be secrets, and are settings of services
_ATTEMPTS = 3
_REPORT_TIMEOUT = 2.0  # seconds from the end of a service to the report of its exit code


def can_fork() -> bool:
    """Return whether this system has process descriptors and parent-death signals."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


class ForkedProcess:
    """A service that the fork server started, with the part of `asyncio.subprocess.Process` that we use."""

    def __init__(self, pid: int, descriptor: int, connection: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._descriptor = descriptor
        self._connection = connection
        connection.setblocking(False)
        self._ended = asyncio.ensure_future(self._follow())

    async def wait(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        return await asyncio.shield(self._ended)

    def send_signal(self, sent: signal.Signals) -> None:
        """Send a signal if the process runs. Its pid may belong to another process afterwards."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, sent)

    async def _follow(self) -> int:
        """Wait for the end of the process, and for its exit code from the fork server, which may hang."""
        report = asyncio.ensure_future(_receive(self._connection))
        end = asyncio.ensure_future(_wait_until_readable(self._descriptor))
        try:
            await asyncio.wait({report, end}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({report}, timeout=_REPORT_TIMEOUT)
            reported = report.result() if report.done() else b""
            if not reported:
                # The fork server died, and its services got the signal of a dead parent.
                self.send_signal(signal.SIGKILL)
            await end
        finally:
            report.cancel()
            end.cancel()
            await asyncio.gather(report, end, return_exceptions=True)
            self._connection.close()
        self.returncode = int(reported or -signal.SIGKILL)
        os.close(self._descriptor)
        return self.returncode


async def _receive(connection: socket.socket) -> bytes:
    try:
        return await asyncio.get_running_loop().sock_recv(connection, _MAX_ANSWER)
    except ConnectionError:
        return b""


async def _wait_until_readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


@dataclass
class ServiceForks:
    """The fork server of a stack. Another one is started if it dies."""

    modules: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    """Where the fork server reports its own errors."""
    _control: socket.socket | None = None
    _server: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def open(self) -> socket.socket:
        """Start the fork server if it does not run. It imports the modules before its first fork."""
        if self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [sys.executable, "-P", "-m", "trace_etl.lite.processes.fork_server"]
            with theirs, self.log.open("ab") as output:
                self._server = subprocess.Popen(
                    [*command, str(theirs.fileno()), *self.modules],
                    env=dict(self.environment),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        return self._control

    async def start(self, service: ServiceStart, log: int) -> ForkedProcess:
        """Start a service with its output in the file `log`. Raises ServiceFailed."""
        for _ in range(_ATTEMPTS):
            control = self.open()
            try:
                # Sent here, not in the thread: another service may close the socket of a dead server.
                connection = _request(control, log)
                return ForkedProcess(*await asyncio.to_thread(_describe, connection, service))
            except ConnectionError:
                if control is self._control:  # another service may have noticed it before
                    self.close()
        raise ServiceFailed("the fork server of the services ended", f"read the log: {self.log}")

    def close(self) -> None:
        """End the fork server. Services that still run get the signal of a dead parent."""
        if self._control is not None and self._server is not None:
            self._control.close()
            self._server.kill()  # it may still import modules
            self._server.wait()
            self._control = self._server = None


def make_environment(inherited: Mapping[str, str], home: Path) -> dict[str, str]:
    """Make the environment of the fork server from the user's: without settings and secrets."""
    kept = {name: value for name, value in inherited.items() if not name.startswith(_WITHHELD)}
    own = {"TRACE_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    return {**kept, **WITHOUT_THREADS, **own}


def _request(control: socket.socket, log: int) -> socket.socket:
    """Ask the fork server for a service, and return the socket of the service."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            socket.send_fds(control, [b"s"], [theirs.fileno(), log])
        except ConnectionError:
            ours.close()
            raise
    return ours


def _describe(connection: socket.socket, service: ServiceStart) -> tuple[int, int, socket.socket]:
    """Tell the service what it is. Returns its pid, its process descriptor and its socket."""
    try:
        connection.sendall(json.dumps(asdict(service)).encode())
        connection.shutdown(socket.SHUT_WR)
        answer, descriptors, _, _ = socket.recv_fds(connection, _MAX_ANSWER, 1)
        if not answer:
            raise ConnectionResetError("the fork server ended")
    except BaseException:
        connection.close()
        raise
    return int(answer), descriptors[0], connection
