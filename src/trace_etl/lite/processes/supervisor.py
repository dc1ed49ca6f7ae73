"""The supervisor: start processes in order, restart those that exit, stop in reverse order."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trace_etl.lite.errors import ServiceFailed
from trace_etl.lite.processes import child, log_view
from trace_etl.lite.processes.child import Child
from trace_etl.lite.processes.forks import ServiceForks
from trace_etl.lite.processes.record import ServiceRecord
from trace_etl.lite.processes.services import StackService
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

    services: Sequence[StackService]
    logs: Path
    log: log_view.EventLog
    publish: Callable[[Sequence[ServiceRecord]], None]
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    forks: ServiceForks | None = None

    def __post_init__(self) -> None:
        self._records = {
            service.name: ServiceRecord(
                service.name,
                service.where,
                isolation=service.isolation,
                warning=service.warning,
            )
            for service in self.services
        }
        self._ready = {service.name: asyncio.Event() for service in self.services}
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

        Raises ServiceFailed if a process cannot be started.
        """
        keepers = [asyncio.create_task(self._keep(service)) for service in self.services]
        events: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._announce(on_up)),
            asyncio.create_task(self._stopping.wait()),
        ]
        try:
            await _wait_for_failure_or_end(keepers, *events)
        finally:
            await _cancel([*keepers, *events])
            await self._shut_down()

    async def _announce(self, on_up: Callable[[], None]) -> None:
        for event in self._ready.values():
            await event.wait()
        on_up()

    async def _keep(self, service: StackService) -> None:
        """Keep one process running: start it, wait until it exits, wait for the delay, repeat."""
        for name in service.after:
            await self._ready[name].wait()
        failures = 0
        while True:
            process = await self._start(service)
            await self._wait_until_ready(service, process)
            code = await process.ended()
            failures = self.policy.failures_after(failures, process.healthy)
            if not self._ready[service.name].is_set() and failures >= self.policy.start_attempts:
                raise self._make_start_error(service, code)
            await self._back_off(service, code, self.policy.backoff.seconds(failures))

    async def _start(self, service: StackService) -> Child:
        process = await child.start(service, self._log_path(service), self.forks)
        self._children[service.name] = process
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._update_record(
            service, state="starting", pid=process.pid, created=process.created, since=now
        )
        self.log.event("service_started", service=service.name, pid=process.pid)
        return process

    async def _wait_until_ready(self, service: StackService, process: Child) -> None:
        """Wait until the process is ready or has exited. Kill it after `ready_within`."""
        while not process.has_ended:
            if await asyncio.to_thread(service.is_ready, process.pid):
                return await self._mark_ready(service, process)
            if process.age > service.ready_within:
                self.log.event(
                    "service_not_ready", "error", service=service.name, after=service.ready_within
                )
                return process.kill()
            await asyncio.sleep(_POLL)

    async def _mark_ready(self, service: StackService, process: Child) -> None:
        try:
            if service.on_ready:
                await asyncio.to_thread(service.on_ready)
        except Exception as error:
            self.log.event("service_hook_failed", "error", service=service.name, error=repr(error))
            return process.kill()
        process.ready = time.monotonic()
        self._update_record(service, state="ready")
        self.log.event("service_ready", service=service.name, seconds=round(process.age, 2))
        self._ready[service.name].set()

    async def _back_off(self, service: StackService, code: int, delay: float) -> None:
        restarts = self._records[service.name].restarts + 1
        self._update_record(service, state="restarting", pid=None, created=None, last_exit=code)
        self.log.event("service_exited", "error", service=service.name, code=code, restart_in=delay)
        await asyncio.sleep(delay)
        self._update_record(service, restarts=restarts)

    async def _shut_down(self) -> None:
        """Stop the processes; each one after the processes that need it."""
        self.log.event("stack_stopping")
        waiting = {service.name: service for service in self.services}
        while waiting:
            needed = {name for service in waiting.values() for name in service.after}
            layer = [service for name, service in waiting.items() if name not in needed]
            await asyncio.gather(*(self._stop(service) for service in layer))
            waiting = {name: service for name, service in waiting.items() if service not in layer}
        self.log.event("stack_stopped")

    async def _stop(self, service: StackService) -> None:
        process = self._children.get(service.name)
        if process:
            await process.stop(self._hurry)
        self._update_record(service, state="stopped", pid=None, created=None)

    def _make_start_error(self, service: StackService, code: int) -> ServiceFailed:
        path = self._log_path(service)
        output = log_view.tail(path, since=self._children[service.name].log_start)
        return ServiceFailed(
            f"{service.name} does not start (exit code {code}); the end of its log:\n{output}",
            f"read the whole log: {path}",
        )

    def _log_path(self, service: StackService) -> Path:
        return self.logs / f"{service.name}.log"

    def _update_record(self, service: StackService, **changes: Any) -> None:
        record = self._records[service.name]
        for name, value in changes.items():
            setattr(record, name, value)
        try:
            self.publish(list(self._records.values()))
        except OSError as error:
            # A full disk must not stop the supervisor.
            self.log.event("record_not_written", "error", error=str(error))


async def _wait_for_failure_or_end(
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
