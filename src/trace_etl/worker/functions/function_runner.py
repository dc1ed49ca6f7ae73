"""Run user-defined functions: fetch and verify the bundle, start a sandbox, serve its calls."""

import shutil
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

import structlog

from trace_etl.api.task.lifecycle import TaskPayload, TaskResult
from trace_etl.api.task.payload import TaskFunction
from trace_etl.sandbox.broker.broker import AttemptIdentity, Broker, PlatformClients
from trace_etl.sandbox.bubblewrap import BUNDLE, SOCKETS, Shown
from trace_etl.sandbox.process import Ended, Program
from trace_etl.spark.dispatcher_link import DispatcherLink
from trace_etl.worker.functions.bundle_programs import BundleRefused, make_program
from trace_etl.worker.functions.function_results import (
    SHOWN_OUTPUT,
    Bundles,
    FunctionFailed,
    RunningProgram,
    make_result,
    over_memory,
    raise_if_refused,
)

_log = structlog.stdlib.get_logger()


@dataclass
class FunctionRunner:
    """Runs each attempt in a sandbox of its own."""

    bundles: Bundles
    upstream: PlatformClients
    directory: Path
    start: Callable[[Program, Callable[[bytes], None]], RunningProgram]
    """Starts a program in a sandbox, and passes its output on."""
    _running: dict[tuple[UUID, int], RunningProgram] = field(
        default_factory=dict[tuple[UUID, int], RunningProgram]
    )
    """The programs by task and attempt."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, task: TaskPayload, link: DispatcherLink) -> TaskResult:
        """Run the function of a task. Raises TraceError."""
        if task.udf is None or link.token is None or link.lease_token is None:
            raise BundleRefused(f"the task of the operator {task.operator} names no bundle")
        with self._make_directory(task) as place:
            self.bundles.unpack(task.udf, place / "bundle")
            identity = AttemptIdentity(task.task_id, task.attempt, link.lease_token, link.token)
            sockets = _make_run_directory(task, place / "run")
            broker = Broker(sockets / "broker.sock", self.upstream, identity)
            try:
                ended = self._run_sandbox(task, task.udf, place, link)
            finally:
                with self._lock:
                    self._running.pop((task.task_id, task.attempt), None)
                broker.close()
            self._check(task, ended, link)
            return make_result(task, broker.published)

    def cancel(self, task_id: UUID, attempt: int, within: float = 0.0) -> None:
        """End the function of an attempt at once."""
        with self._lock:
            process = self._running.get((task_id, attempt))
        if process is not None:
            process.kill()

    @contextmanager
    def _make_directory(self, task: TaskPayload) -> Generator[Path]:
        place = self.directory / f"{task.task_id}-{task.attempt}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700, parents=True)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _run_sandbox(
        self, task: TaskPayload, function: TaskFunction, place: Path, link: DispatcherLink
    ) -> Ended:
        assert link.token
        program = make_program(function, place / "bundle", self.bundles.runtime(task))
        program = replace(
            program,
            isolation=self.bundles.runtime(task).isolation,
            environment={
                "TRACE_TASK_CAPABILITY_TOKEN": link.token(),
                "TRACE_SOCKET": f"{SOCKETS}/broker.sock",
                "TRACE_EVENT_FILE": f"{SOCKETS}/event.json",
            },
            files=[
                Shown(place / "bundle", BUNDLE),
                Shown(place / "run", SOCKETS),
            ],
            limits=replace(program.limits, wall_seconds=float(task.timeout_seconds)),
        )
        with self._lock:
            link.check()
            process = self.start(program, link.log)
            self._running[task.task_id, task.attempt] = process
        if process.wait_for_start():
            link.isolated(program.isolation)
            return process.wait()
        ended = process.wait()
        if ended.reason == "exited" and program.isolation == "namespaces":
            raise_if_refused(ended.output.decode("utf-8", "replace"))
        return ended

    def _check(self, task: TaskPayload, ended: Ended, link: DispatcherLink) -> None:
        """Raise the error of a function that did not succeed."""
        output = link.mask(ended.output.decode("utf-8", "replace"))
        _log.info(
            "function_ended",
            task_id=str(task.task_id),
            reason=ended.reason,
            exit_code=ended.exit_code,
            output=output[-SHOWN_OUTPUT:],
        )
        if ended.reason == "memory":
            raise over_memory(self.bundles.runtime(task), task.runtime)
        if ended.reason != "exited" or ended.exit_code != 0:
            how = f"exit code {ended.exit_code}" if ended.reason == "exited" else ended.reason
            raise FunctionFailed(f"{how}: {output[-SHOWN_OUTPUT:].strip() or 'no output'}")


def _make_run_directory(task: TaskPayload, directory: Path) -> Path:
    """Make the directory with the event and the socket. The user of the sandbox reads it."""
    directory.mkdir()
    event = directory / "event.json"
    event.write_text(task.model_dump_json())
    event.chmod(0o644)
    directory.chmod(0o755)
    return directory
