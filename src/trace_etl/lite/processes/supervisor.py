"""The supervisor: start processes in order, restart those that exit, stop in reverse order."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trace_etl.lite.errors import PartFailed
from trace_etl.lite.processes import child, log_view
from trace_etl.lite.processes.child import Child
from trace_etl.lite.processes.parts import Part
from trace_etl.lite.processes.record import PartRecord
from trace_etl.policy.retry import Backoff

_POLL = 0.05
_RESTART_BACKOFF = Backoff.of_seconds(0.5, 5)


@dataclass(frozen=True)
class RestartPolicy:
    """The restart delay, and the healthy time after which earlier failures no longer count."""

    backoff: Backoff = _RESTART_BACKOFF
    stable_after: float = 60.0
    start_attempts: int = 3

    def failures_after(self, failures: int, healthy: float) -> int:
        """Return the failures in a row after a process failed that was ready for `healthy` seconds."""
        return 1 if healthy >= self.stable_after else failures + 1


@dataclass
class Supervisor:
    """Keeps processes running until a stop is requested. Runs in the main thread only."""

    parts: Sequence[Part]
    logs: Path
    log: log_view.EventLog
    publish: Callable[[Sequence[PartRecord]], None]
    policy: RestartPolicy = field(default_factory=RestartPolicy)

    def __post_init__(self) -> None:
        self._records = {
            part.name: PartRecord(part.name, part.where, isolation=part.isolation)
            for part in self.parts
        }
        self._ready = {part.name: asyncio.Event() for part in self.parts}
        self._children: dict[str, Child] = {}
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()

    def request_stop(self) -> None:
        """Begin a clean shutdown. A second request kills the remaining processes."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def run(self, on_up: Callable[[], None]) -> None:
        """Start all processes, call `on_up`, and keep them running until a stop is requested.

        Raises PartFailed if a process cannot be started.
        """
        keepers = [asyncio.create_task(self._keep(part)) for part in self.parts]
        events: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._announce(on_up)),
            asyncio.create_task(self._stopping.wait()),
        ]
        try:
            await _first_failure_or_end(keepers, *events)
        finally:
            await _cancel([*keepers, *events])
            await self._shut_down()

    async def _announce(self, on_up: Callable[[], None]) -> None:
        for event in self._ready.values():
            await event.wait()
        on_up()

    async def _keep(self, part: Part) -> None:
        """Keep one process running: start it, wait until it exits, wait for the delay, repeat."""
        for name in part.after:
            await self._ready[name].wait()
        failures = 0
        while True:
            process = await self._start(part)
            await self._wait_until_ready(part, process)
            code = await process.ended()
            failures = self.policy.failures_after(failures, process.healthy)
            if not self._ready[part.name].is_set() and failures >= self.policy.start_attempts:
                raise self._make_start_error(part, code)
            await self._back_off(part, code, self.policy.backoff.seconds(failures))

    async def _start(self, part: Part) -> Child:
        process = await child.start(part, self._log_path(part))
        self._children[part.name] = process
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._update_record(
            part, state="starting", pid=process.pid, created=process.created, since=now
        )
        self.log.event("part_started", part=part.name, pid=process.pid)
        return process

    async def _wait_until_ready(self, part: Part, process: Child) -> None:
        """Wait until the process is ready or has exited. Kill it after `ready_within`."""
        while not process.has_ended:
            if await asyncio.to_thread(part.is_ready, process.pid):
                return await self._mark_ready(part, process)
            if process.age > part.ready_within:
                self.log.event("part_not_ready", "error", part=part.name, after=part.ready_within)
                return process.kill()
            await asyncio.sleep(_POLL)

    async def _mark_ready(self, part: Part, process: Child) -> None:
        try:
            if part.on_ready:
                await asyncio.to_thread(part.on_ready)
        except Exception as error:
            self.log.event("part_hook_failed", "error", part=part.name, error=repr(error))
            return process.kill()
        process.ready = time.monotonic()
        self._update_record(part, state="ready")
        self.log.event("part_ready", part=part.name, seconds=round(process.age, 2))
        self._ready[part.name].set()

    async def _back_off(self, part: Part, code: int, delay: float) -> None:
        restarts = self._records[part.name].restarts + 1
        self._update_record(part, state="restarting", pid=None, created=None, last_exit=code)
        self.log.event("part_exited", "error", part=part.name, code=code, restart_in=delay)
        await asyncio.sleep(delay)
        self._update_record(part, restarts=restarts)

    async def _shut_down(self) -> None:
        """Stop the processes; each one after the processes that need it."""
        self.log.event("stack_stopping")
        waiting = {part.name: part for part in self.parts}
        while waiting:
            needed = {name for part in waiting.values() for name in part.after}
            layer = [part for name, part in waiting.items() if name not in needed]
            await asyncio.gather(*(self._stop(part) for part in layer))
            waiting = {name: part for name, part in waiting.items() if part not in layer}
        self.log.event("stack_stopped")

    async def _stop(self, part: Part) -> None:
        process = self._children.get(part.name)
        if process:
            await process.stop(self._hurry)
        self._update_record(part, state="stopped", pid=None, created=None)

    def _make_start_error(self, part: Part, code: int) -> PartFailed:
        path = self._log_path(part)
        output = log_view.tail(path, since=self._children[part.name].log_start)
        return PartFailed(
            f"{part.name} does not start (exit code {code}); the end of its log:\n{output}",
            f"read the whole log: {path}",
        )

    def _log_path(self, part: Part) -> Path:
        return self.logs / f"{part.name}.log"

    def _update_record(self, part: Part, **changes: Any) -> None:
        record = self._records[part.name]
        for name, value in changes.items():
            setattr(record, name, value)
        try:
            self.publish(list(self._records.values()))
        except OSError as error:
            # A full disk must not stop the supervisor.
            self.log.event("record_not_written", "error", error=str(error))


async def _first_failure_or_end(
    keepers: list[asyncio.Task[None]], *events: asyncio.Task[None]
) -> None:
    """Wait until the last event happens. A keeper task ends only by failing."""
    pending = {*keepers, *events}
    while events[-1] in pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
