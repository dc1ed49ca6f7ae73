"""One child process: bound to the supervisor, and stopped with its whole process tree."""

import asyncio
import os
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from trace_etl.lite.processes import process_tree
from trace_etl.lite.processes.fork_server import ServiceStart
from trace_etl.lite.processes.forks import ForkedProcess, ServiceForks
from trace_etl.lite.processes.services import StackService

_SECOND_GRACE = 3.0


@dataclass
class Child:
    """A child process. It leads its own session, so that its descendants can be found."""

    service: StackService
    process: asyncio.subprocess.Process | ForkedProcess
    created: float
    log_start: int
    began: float = field(default_factory=time.monotonic)
    ready: float | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def age(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    @property
    def healthy(self) -> float:
        """Seconds since the process became ready; 0 before."""
        return 0.0 if self.ready is None else time.monotonic() - self.ready

    @property
    def has_ended(self) -> bool:
        return self.process.returncode is not None

    async def ended(self) -> int:
        """Wait for the end, kill remaining descendants, and return the exit code."""
        code = await self.process.wait()
        process_tree.kill_all(process_tree.session_members(self.pid))
        return code

    async def stop(self, hurry: asyncio.Event) -> None:
        """Send the stop signals in turn; if `hurry` is set, only the last one."""
        for position, sent in enumerate(self.service.stop_with):
            if self.has_ended:
                break
            if hurry.is_set() and position + 1 < len(self.service.stop_with):
                continue
            self._send(sent)
            await self._wait(_SECOND_GRACE if position else self.service.grace, hurry)
        await self.ended()

    def kill(self) -> None:
        """Send the last stop signal."""
        self._send(self.service.stop_with[-1])

    def _send(self, sent: signal.Signals) -> None:
        if not self.has_ended:
            self.process.send_signal(sent)

    async def _wait(self, grace: float, hurry: asyncio.Event) -> None:
        waits = {asyncio.ensure_future(self.process.wait()), asyncio.ensure_future(hurry.wait())}
        try:
            await asyncio.wait(waits, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


async def start(service: StackService, log: Path, forks: ServiceForks | None = None) -> Child:
    """Start a process with its output appended to `log`, through the fork server if there is one."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    log_start = os.fstat(output).st_size
    try:
        if service.is_forked and forks is not None:
            process = await forks.start(_describe_start(service), output)
        else:
            process = await _execute(service, output)
    finally:
        os.close(output)
    return Child(service, process, _read_start_time(process.pid), log_start)


def _describe_start(service: StackService) -> ServiceStart:
    access = None if service.restricts_itself else service.access
    return ServiceStart(
        argv=list(service.argv),
        environment=dict(service.environment),
        directory=service.directory,
        sent=service.stop_with[0],
        allowed=asdict(access) if access else None,
    )


async def _execute(service: StackService, output: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *process_tree.bound(
            service.argv,
            sent=service.stop_with[0],
            account=service.account,
            directory=service.directory,
            access=None if service.restricts_itself else service.access,
        ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=dict(service.environment),
        start_new_session=True,
    )


def _read_start_time(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return time.time()
