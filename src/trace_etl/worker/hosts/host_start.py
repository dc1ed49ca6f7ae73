"""Start operator hosts, each in a process group of its own, and end them with all their processes.

A worker that Landlock restricts can neither mount nor change the user. So a worker of root first starts a
*starter*, a small process with one socket, and restricts itself afterwards. The starter gives each host an
account of its own and Landlock rules, and shows it nothing that the worker may not use itself, whatever the
worker asks for. When either of them ends, the hosts end.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from trace_etl import account, launcher

_PROGRAM = (sys.executable, "-P", "-m", "trace_etl.worker.hosts.host")
_MODULE = "trace_etl.worker.hosts.host_start"
_MESSAGE_BYTES = 4096
_DESCRIPTORS = 3  # settings, connection, output
Paths = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class HostCommand:
    """How a host is started."""

    environment: Mapping[str, str]
    directory: Path
    allowed: Paths | None
    """The paths that it may use (`read`, `write`); None for all."""
    view: Paths | None = None
    """The paths that another account sees. None: the host runs as the worker's account."""
    has_own_credentials: bool = False
    """Whether each task gets credentials of S3, in a file of `directory`."""


class StartedHost:
    """A host that this process has started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    @property
    def output(self) -> IO[bytes] | None:
        """What the host prints."""
        return self._process.stdout

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, below 0 for a signal. Raises TimeoutError."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError from error

    def kill(self) -> None:
        """Kill the host with all its processes."""
        tree: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            tree = psutil.Process(self.pid).children(recursive=True)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def start_host(command: HostCommand, connection: socket.socket) -> StartedHost:
    """Start a host with the rights of this process, or with fewer."""
    # No parent-death signal: the kernel would send it when the thread of the slot ends. The host
    # notices the end of its worker by the end of the socket.
    process = subprocess.Popen(
        _make_arguments(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**command.environment, "TRACE_HOST_FD": str(connection.fileno())},
        pass_fds=[connection.fileno()],
        process_group=0,
    )
    return StartedHost(process)


def _make_arguments(command: HostCommand) -> list[str]:
    directory = str(command.directory)
    if command.view is not None:
        settings = {**command.view, "directory": directory, "command": _PROGRAM}
        return account.make_command(settings)
    numbers = [str(number) for number in (os.getpid(), 0, -1, -1)]
    argv = [sys.executable, "-I", "-S", launcher.__file__, *numbers, json.dumps(command.allowed)]
    return [*argv, directory, *_PROGRAM]


# --- the starter, as the worker sees it ----------------------------------------------------------


class HostRefused(Exception):
    """The starter did not start a host."""


class RemoteHost:
    """A host that the starter has started. The same interface as StartedHost."""

    def __init__(self, starter: "HostStarter", number: int, output: IO[bytes]) -> None:
        self._starter, self._number, self.output = starter, number, output
        self._decided, self._ended = threading.Event(), threading.Event()
        self.pid, self._code, self._problem = 0, -signal.SIGKILL, ""

    def wait_for_start(self) -> None:
        """Wait until its process exists. Raises HostRefused."""
        self._decided.wait()
        if self._problem:
            self.output.close()
            raise HostRefused(self._problem)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, below 0 for a signal. Raises TimeoutError."""
        if not self._ended.wait(timeout):
            raise TimeoutError
        return self._code

    def kill(self) -> None:
        """Kill the host with all its processes."""
        with suppress(OSError):  # the starter has gone, and its hosts with it
            self._starter.send({"kill": self._number})

    def receive(self, answer: Mapping[str, Any]) -> None:
        """Take an answer of the starter."""
        self.pid = answer.get("pid", self.pid)
        self._problem = answer.get("problem", "")
        if "pid" not in answer:
            self._code = answer.get("code", self._code)
            self._ended.set()
        self._decided.set()


class HostStarter:
    """The worker's end of the connection to the starter. The worker ends with the starter."""

    def __init__(self, connection: socket.socket) -> None:
        connection.set_inheritable(False)
        self._socket, self._lock = connection, threading.Lock()
        self._hosts: dict[int, RemoteHost] = {}
        self._count, self._is_closed = 0, False
        self._reader = threading.Thread(target=self._read_answers, name="starter", daemon=True)
        self._reader.start()

    def start(self, command: HostCommand, connection: socket.socket) -> RemoteHost:
        """Start a host that sees its `allowed` paths. Raises HostRefused, OSError."""
        output, theirs = os.pipe()
        fields = {
            "environment": dict(command.environment),
            "directory": str(command.directory),
            "allowed": command.allowed,
        }
        settings = _make_file(fields)
        with self._lock:
            self._count += 1
            number = self._count
            host = self._hosts[number] = RemoteHost(self, number, os.fdopen(output, "rb"))
        try:
            self.send({"start": number}, [settings, connection.fileno(), theirs])
        finally:
            os.close(settings)
            os.close(theirs)
        host.wait_for_start()
        return host

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(message).encode()], list(descriptors))

    def close(self) -> None:
        """End the starter and all its hosts."""
        self._is_closed = True
        with suppress(OSError):  # the starter has ended already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._socket.close()

    def _read_answers(self) -> None:
        while (found := self._receive()) is not None:
            host = self._hosts[found["number"]]
            if "pid" not in found:
                del self._hosts[found["number"]]
            host.receive(found)
        for host in [*self._hosts.values()]:
            host.receive({})
        if not self._is_closed:
            # Hosts cannot be started any more. The supervisor starts a new worker.
            os.kill(os.getpid(), signal.SIGTERM)

    def _receive(self) -> dict[str, Any] | None:
        with suppress(ConnectionError):
            content = self._socket.recv(_MESSAGE_BYTES)
            return json.loads(content) if content else None
        return None


def launch_starter(
    read: Sequence[str], write: Sequence[str]
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start the starter for a worker that may use these paths, and return the connection to it.

    It ends with the connection.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    limits = json.dumps({"read": [*read], "write": [*write]})
    command = [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno()), limits]
    with theirs:
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=kept, cwd="/")
    return ours, process


# --- the starter itself --------------------------------------------------------------------------


class _StarterServer:
    """Starts the hosts that the worker asks for, until the worker ends."""

    def __init__(self, connection: socket.socket, limits: Paths) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self._read = [os.path.realpath(path) for path in (*limits["read"], *limits["write"])]
        self._write = [os.path.realpath(path) for path in limits["write"]]
        self._hosts: dict[int, StartedHost] = {}

    def serve(self) -> None:
        """Serve requests in this thread: the hosts die with the thread that starts them."""
        while (received := _receive(self._connection)) is not None:
            message, descriptors = received
            if "start" in message:
                self._start(message["start"], descriptors)
            elif host := self._hosts.get(message["kill"]):
                host.kill()
        for host in [*self._hosts.values()]:
            host.kill()

    def _start(self, number: int, descriptors: Sequence[int]) -> None:
        try:
            with os.fdopen(os.dup(descriptors[0])) as file:
                wanted = json.load(file)
            host = self._hosts[number] = StartedHost(self._open(wanted, *descriptors[1:]))
        except (OSError, KeyError, TypeError, ValueError) as error:
            self._answer(number, problem=f"{type(error).__name__}: {error}")
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._answer(number, pid=host.pid)
        threading.Thread(target=self._wait, args=(number, host), daemon=True).start()

    def _open(self, wanted: Mapping[str, Any], connection: int, output: int) -> Any:
        read, write = wanted["allowed"]["read"], wanted["allowed"]["write"]
        _check_inside(read, self._read)
        _check_inside([*write, wanted["directory"]], self._write)
        settings = _make_file(
            {
                "read": read,
                "write": write,
                "directory": wanted["directory"],
                "command": _PROGRAM,
                "environment": {**wanted["environment"], "TRACE_HOST_FD": str(connection)},
                "landlock": True,
            }
        )
        try:
            return subprocess.Popen(
                account.make_command(settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={},  # the program begins as root: no variable of the worker may change it
                pass_fds=[settings, connection],
                process_group=0,
                cwd="/",
            )
        finally:
            os.close(settings)

    def _wait(self, number: int, host: StartedHost) -> None:
        code = host.wait()
        host.kill()
        del self._hosts[number]
        self._answer(number, code=code)

    def _answer(self, number: int, **fields: object) -> None:
        with self._lock, suppress(OSError):  # the worker has gone
            self._connection.send(json.dumps({"number": number, **fields}).encode())


def _check_inside(paths: Sequence[str], allowed: Sequence[str]) -> None:
    """Raise PermissionError for a path that the worker itself may not use."""
    for path in paths:
        real = Path(os.path.realpath(path))
        if not any(real.is_relative_to(parent) for parent in allowed):
            raise PermissionError(f"the worker may not use {path}")


def _make_file(content: object) -> int:
    """Return the descriptor of an unnamed file with this content as JSON, at its start."""
    descriptor = os.memfd_create("host")
    with os.fdopen(os.dup(descriptor), "w") as file:
        json.dump(content, file)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next request with its descriptors. None: the worker has gone."""
    body, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, _DESCRIPTORS)
    return (json.loads(body), list(descriptors)) if body else None


def main(arguments: list[str]) -> None:
    """Start hosts for the worker at the other end of a socket, until that end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the worker stops its hosts first
    connection = socket.socket(fileno=int(arguments[0]))
    connection.set_inheritable(False)
    _StarterServer(connection, json.loads(arguments[1])).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
