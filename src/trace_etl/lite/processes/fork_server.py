"""Fork the services of a stack from one process that has imported their modules.

`python -P -m trace_etl.lite.processes.fork_server FD MODULE…`. For each service, the supervisor sends a socket
and the log of the service over the socket `FD`. The service reads its `ServiceStart` from its own socket, on
which this process answers with its pid and later with its exit code. It ends when the supervisor closes `FD`,
and the services get the signal of a dead parent.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from trace_etl import launcher
from trace_etl.lite.processes import command_line
from trace_etl.process import count_threads

_MAX_MESSAGE = 1
_PIECE = 65536


@dataclass(frozen=True)
class ServiceStart:
    """How a service runs. The last word of `argv` is its module."""

    argv: list[str]
    environment: dict[str, str]
    directory: str
    sent: int
    """The signal that it gets when this process dies."""
    allowed: dict[str, list[str]] | None
    """The paths that it may use; None if nothing restricts it."""


@dataclass(frozen=True)
class Forked:
    """A running service."""

    pid: int
    connection: socket.socket


class ServiceForkServer:
    """The running services by their process descriptors."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._running: dict[int, Forked] = {}

    def run(self) -> tuple[socket.socket, int] | None:
        """Fork services until the supervisor closes the socket.

        Returns also in each service, with its socket and its log, so that no frame of this loop ends there.
        """
        while True:
            ready, _, _ = select.select([self._control.fileno(), *self._running], [], [])
            for descriptor in ready:
                if descriptor in self._running:
                    self._report_end(descriptor)
            if self._control.fileno() in ready:
                _, received, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE, 2)
                if not received:
                    return None
                connection, log = socket.socket(fileno=received[0]), received[1]
                if self._fork(connection, log) == 0:
                    return connection, log

    def _fork(self, connection: socket.socket, log: int) -> int:
        pid = os.fork()
        if pid == 0:
            self._close()
            return pid
        os.close(log)
        descriptor = os.pidfd_open(pid)
        self._running[descriptor] = Forked(pid, connection)
        _send(connection, pid, [descriptor])
        return pid

    def _report_end(self, descriptor: int) -> None:
        forked = self._running.pop(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(forked.pid, 0)
        _send(forked.connection, os.waitstatus_to_exitcode(status), [])
        forked.connection.close()

    def _close(self) -> None:
        """Close in a service what belongs to this process and to the other services."""
        self._control.close()
        for descriptor, forked in self._running.items():
            os.close(descriptor)
            forked.connection.close()


def _send(connection: socket.socket, number: int, descriptors: list[int]) -> None:
    with suppress(ConnectionError):  # the supervisor died, or gave up this start
        socket.send_fds(connection, [f"{number}\n".encode()], descriptors)


def run_service(connection: socket.socket, log: int, server: int) -> NoReturn:
    """Become the service that the supervisor describes on the socket."""
    with connection:
        start = ServiceStart(**json.loads(_read(connection)))
    os.setsid()
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    launcher.bind(server, start.sent, start.directory, start.allowed)
    os.environ.clear()
    os.environ.update(start.environment)
    command_line.show(start.argv, start.environment)
    sys.argv, sys.orig_argv = start.argv[-1:], start.argv
    gc.enable()
    module = importlib.import_module(f"{start.argv[-1]}.__main__")
    sys.exit(module.main())


def _read(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(_PIECE), b""))


def import_services(modules: list[str]) -> None:
    """Import the modules of services. Without them if one starts a thread, which a fork would lose."""
    for name in modules:
        importlib.import_module(f"{name}.__main__")
    if modules and count_threads() != 1:
        os.execv(sys.executable, sys.orig_argv[: -len(modules)])  # noqa: S606
    gc.collect()
    gc.freeze()  # a collection would write to the memory that services share


def main() -> None:
    """Import modules, then fork services until the supervisor ends."""
    descriptor, *modules = sys.argv[1:]
    server = os.getpid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    import_services(modules)
    started = ServiceForkServer(socket.socket(fileno=int(descriptor))).run()
    if started is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run_service(*started, server)


if __name__ == "__main__":
    main()
