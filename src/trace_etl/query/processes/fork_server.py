"""Fork query processes from one process that has imported everything they need.

`python -m trace_etl.query.processes.fork_server FD`. The service sends commands over the socket `FD`:
`{"start": id, "limits": …}` with the socket of the new process, or `{"kill": id}`. This process
reports each end as `{"ended": id, "status": …}`. It ends when the service closes the socket, and
the query processes end with it.
"""

import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from types import FrameType
from typing import Any

import orjson

from trace_etl.process import keep_freed_memory
from trace_etl.query.requests import QueryLimits

_MAX_COMMAND = 8192
_UNUSED = ("pandas", "polars")  # Arrow and its driver import them if they are installed
Serve = Callable[[socket.socket, int, QueryLimits], None]


def main() -> None:
    """Serve commands until the service closes the control socket."""
    sys.meta_path.insert(0, _UnusedPackages())
    from trace_etl.query.processes.query_process import serve

    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the service ends this process
    control = socket.socket(fileno=int(sys.argv[1]))
    wake_read, wake_write = socket.socketpair()
    wake_write.setblocking(False)
    signal.signal(signal.SIGCHLD, _ignore)  # a handler makes Python write to the wake-up socket
    signal.set_wakeup_fd(wake_write.fileno())
    ForkServer(serve, control, [wake_read, wake_write]).run(wake_read)


class _UnusedPackages(MetaPathFinder):
    """Makes imports fail that take as long as all others together."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname in _UNUSED:
            raise ModuleNotFoundError(fullname)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


class ForkServer:
    """The forked processes by id."""

    def __init__(self, serve: Serve, control: socket.socket, own: list[socket.socket]) -> None:
        self._serve = serve
        self._control = control
        self._own = [control, *own]
        self._pids: dict[int, int] = {}

    def run(self, wake: socket.socket) -> None:
        while True:
            ready, _, _ = select.select([self._control, wake], [], [])
            if wake in ready:
                wake.recv(_MAX_COMMAND)
                self._report_ended()
            if self._control in ready and not self._obey():
                return

    def _obey(self) -> bool:
        """Handle one command. Returns False at the end of the socket."""
        text, descriptors, _, _ = socket.recv_fds(self._control, _MAX_COMMAND, 1)
        if not text:
            return False
        command: dict[str, Any] = orjson.loads(text)
        if "start" in command:
            self._start(command["start"], QueryLimits(**command["limits"]), descriptors[0])
        elif (pid := self._pids.get(command["kill"])) is not None:
            os.kill(
                pid, signal.SIGKILL
            )  # the process is not reaped yet, so the pid is still its own
        return True

    def _start(self, process_id: int, limits: QueryLimits, descriptor: int) -> None:
        server = os.getpid()
        pid = os.fork()
        if pid:
            os.close(descriptor)
            self._pids[process_id] = pid
            return
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for mine in self._own:
                mine.close()
            self._serve(socket.socket(fileno=descriptor), server, limits)
            code = 0
        except ConnectionError:
            code = 0  # the service closed the socket before an answer
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _report_ended(self) -> None:
        for process_id, pid in list(self._pids.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self._pids[process_id]
                ended = {"ended": process_id, "status": os.waitstatus_to_exitcode(status)}
                self._control.send(orjson.dumps(ended))


if __name__ == "__main__":
    main()
