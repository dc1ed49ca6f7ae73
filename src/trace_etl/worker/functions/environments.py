"""Warm environments of Lambda functions: sandboxes that serve one invocation after the other.

An environment belongs to one function with one set of grants. What its code leaves behind, in memory
or in its files, is seen by later invocations of the same function and grants, and by nothing else.
"""

import select
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import structlog

from trace_etl.model.errors import TraceError
from trace_etl.sandbox.broker.broker import AttemptIdentity, Broker, PlatformClients, PublishedRows
from trace_etl.sandbox.broker.runtime_api import InvocationRequest, InvocationResult, RuntimeApi
from trace_etl.sandbox.broker.strict_http import listen_at
from trace_etl.sandbox.bubblewrap import BUNDLE, SOCKETS, Shown
from trace_etl.sandbox.process import Ended, Program
from trace_etl.worker.functions.function_results import (
    SHOWN_OUTPUT,
    RunningProgram,
    raise_if_refused,
)

_log = structlog.stdlib.get_logger()
_START_SECONDS = 60.0
_SUSPEND_AFTER = 0.1
"""Seconds without an invocation after which the processes of an environment are stopped."""
_CHECK_SECONDS = 60.0
Start = Callable[[Program, Callable[[bytes], None]], RunningProgram]


@dataclass(frozen=True)
class EnvironmentKey:
    """What two invocations must have in common to run in the same environment."""

    org_id: str
    runtime: str
    job: str
    sha256: str
    handler: str
    grants: str
    """The datasets that the function may read and write, with their versions and filters."""


class Environment:
    """One sandbox with a runtime client in it. Serves one invocation at a time."""

    def __init__(
        self, place: Path, program: Program, upstream: PlatformClients, start: Start
    ) -> None:
        """Start the program in `place`, which has the bundle. Raises TraceError, OSError."""
        self.place, self.used = place, time.monotonic()
        self.ends = time.monotonic() + program.limits.wall_seconds
        self.is_suspended = False
        self._tail, self._on_output = bytearray(), _drop
        self._ended: Ended | TraceError | OSError | None = None
        run = place / "run"
        run.mkdir()
        run.chmod(0o755)
        control = listen_at(run / "control.sock")
        self._broker = Broker(run / "broker.sock", upstream)
        files = [Shown(place / "bundle", BUNDLE), Shown(run, SOCKETS)]
        self._process = start(replace(program, files=files), self._write)
        threading.Thread(target=self._watch, args=(control,), daemon=True).start()
        self._api = RuntimeApi(self._receive_listener(control))
        if self._ended is not None:
            self._api.close()

    @property
    def ended(self) -> Ended | TraceError | OSError | None:
        """How the program ended; None while it runs."""
        return self._ended

    @property
    def published(self) -> dict[str, PublishedRows]:
        """What the current invocation has published."""
        return self._broker.published

    @property
    def output(self) -> str:
        """The end of the output of the current invocation."""
        return bytes(self._tail[-SHOWN_OUTPUT:]).decode("utf-8", "replace")

    def invoke(
        self,
        request: InvocationRequest,
        identity: AttemptIdentity,
        on_output: Callable[[bytes], None],
    ) -> InvocationResult:
        """Run one invocation. The broker speaks for its attempt, and refuses every call after it."""
        self._tail.clear()
        self._on_output = on_output
        self._broker.serve(identity)
        self.is_suspended = False
        self._process.resume()
        result = self._api.invoke(request)
        self._process.flush_output()
        return result

    def finish(self) -> None:
        """End the current invocation: refuse its calls and drop its output from now on."""
        self._broker.serve(None)
        self._on_output = _drop
        self.used = time.monotonic()

    def suspend_if_idle(self) -> None:
        """Stop the processes, if the runtime client waits for an invocation."""
        if self.ended is None and not self.is_suspended and self._api.is_idle():
            self._process.suspend()
            self.is_suspended = True

    def kill(self) -> None:
        """End all processes at once."""
        self._process.kill()

    def is_usable(self, seconds: float = 0.0) -> bool:
        """Return whether another invocation may run here for this long."""
        return self.ended is None and time.monotonic() + seconds < self.ends

    def _write(self, part: bytes) -> None:
        self._tail += part
        del self._tail[: -2 * SHOWN_OUTPUT]
        self._on_output(part)

    def _receive_listener(self, control: socket.socket) -> socket.socket:
        """Return the listener of the runtime API, which the sandbox made on its own loopback."""
        # `accept` with a timeout would call itself again all the time once `_watch` has shut `control` down.
        control.setblocking(False)
        try:
            select.select([control], [], [], _START_SECONDS)
            with control, control.accept()[0] as out:
                _, descriptors, _, _ = socket.recv_fds(out, 16, 1)
            return socket.socket(fileno=descriptors[0])
        except (OSError, IndexError) as error:
            self.kill()
            self._broker.close()
            if isinstance(self._ended, Exception):
                raise self._ended from error
            raise_if_refused(self.output)
            how = f"{self._ended.reason}, {self._ended.exit_code}" if self._ended else repr(error)
            raise OSError(f"the sandbox did not start ({how}): {self.output.strip()}") from error

    def _watch(self, control: socket.socket) -> None:
        try:
            self._ended = self._process.wait()
        except (TraceError, OSError) as error:
            self._ended = error
        with suppress(OSError):
            control.shutdown(socket.SHUT_RDWR)
        self._broker.close()
        if api := getattr(self, "_api", None):
            api.close()
        shutil.rmtree(self.place, ignore_errors=True)


def _drop(part: bytes) -> None:
    """Ignore output that belongs to no invocation."""


@dataclass
class EnvironmentPool:
    """The environments of one worker. Keeps idle ones for a while, and at most a number of them."""

    directory: Path
    upstream: PlatformClients
    start: Start
    max_environments: int
    idle_limits: Mapping[str, float | None]
    """How long an idle environment of each runtime is kept. None: as long as there is room."""
    _idle: dict[EnvironmentKey, list[Environment]] = field(
        default_factory=dict[EnvironmentKey, list[Environment]]
    )
    _busy: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _closed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        threading.Thread(target=self._tend, name="environments", daemon=True).start()

    def take(
        self, key: EnvironmentKey, seconds: float, prepare: Callable[[Path], Program]
    ) -> Environment:
        """Return an environment of this key for an invocation of at most `seconds`.

        It is an idle one that lives for so long, else a new one. Raises TraceError, OSError.
        """
        with self._changed:
            self._busy += 1
            idle = self._idle.get(key, [])
            while idle:
                if (found := idle.pop()).is_usable(seconds):
                    return found
                found.kill()
            self._make_room()
        place = self.directory / f"environment-{uuid4().hex}"
        try:
            place.mkdir(mode=0o700, parents=True)
            return Environment(place, prepare(place), self.upstream, self.start)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            with self._changed:
                self._busy -= 1
            raise

    def give_back(self, key: EnvironmentKey, environment: Environment, *, is_clean: bool) -> None:
        """Keep an environment for the next invocation of its key, or end it."""
        environment.finish()
        with self._changed:
            self._busy -= 1
            if is_clean and environment.is_usable() and not self._closed.is_set():
                self._idle.setdefault(key, []).append(environment)
                self._changed.notify_all()
                return
        environment.kill()

    def close(self) -> None:
        """End all idle environments, and keep none from now on."""
        self._closed.set()
        with self._changed:
            ending = [e for idle in self._idle.values() for e in idle]
            self._idle.clear()
            self._changed.notify_all()
        for environment in ending:
            environment.kill()

    def _make_room(self) -> None:
        """End the idle environments that were unused for longest, if there are too many."""
        entries = [(e.used, key, e) for key, idle in self._idle.items() for e in idle]
        entries.sort(key=lambda entry: entry[0])
        surplus = max(0, len(entries) + self._busy - self.max_environments)
        for _, key, environment in entries[:surplus]:
            self._idle[key].remove(environment)
            environment.kill()

    def _tend(self) -> None:
        """Suspend environments that wait, and end those that waited for too long."""
        while not self._closed.is_set():
            with self._changed:
                awake = any(not e.is_suspended for idle in self._idle.values() for e in idle)
                self._changed.wait(_SUSPEND_AFTER if awake else self._next_check())
                self._end_old()
                for environment in [e for idle in self._idle.values() for e in idle]:
                    if time.monotonic() - environment.used >= _SUSPEND_AFTER:
                        environment.suspend_if_idle()

    def _next_check(self) -> float:
        now = time.monotonic()
        ends = [e.used + self._limit(key) - now for key, idle in self._idle.items() for e in idle]
        return max(0.0, min([_CHECK_SECONDS, *ends]))

    def _limit(self, key: EnvironmentKey) -> float:
        limit = self.idle_limits[key.runtime]
        return float("inf") if limit is None else limit

    def _end_old(self) -> None:
        now = time.monotonic()
        for key, idle in list(self._idle.items()):
            limit = self._limit(key)
            old = [e for e in idle if not e.is_usable() or now - e.used >= limit]
            for environment in old:
                idle.remove(environment)
                environment.kill()
            if not idle:
                del self._idle[key]
