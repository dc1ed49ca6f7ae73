"""Run user-defined functions: fetch and verify the bundle, start a sandbox, serve its calls."""

import shutil
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import UUID

import structlog

from trace_etl.api.task.lifecycle import Output, TaskPayload, TaskResult
from trace_etl.api.task.payload import Scope, TaskFunction, TaskOutput
from trace_etl.dag.runtimes import Runtime
from trace_etl.model.bundles import MAX_ZIP_BYTES
from trace_etl.model.errors import TraceError
from trace_etl.model.storage import key_of_url
from trace_etl.objects.errors import ObjectMissing, StorageError
from trace_etl.objects.store import ObjectStore
from trace_etl.policy.bundles import BadBundle, unpack_bundle
from trace_etl.sandbox import bubblewrap
from trace_etl.sandbox.broker import AttemptIdentity, Broker, PlatformClients, PublishedRows
from trace_etl.sandbox.bubblewrap import BUNDLE, MODULES, SOCKETS, Shown
from trace_etl.sandbox.limits import MIB, Limits
from trace_etl.sandbox.process import Ended, Program
from trace_etl.spark.link import DispatcherLink

_log = structlog.stdlib.get_logger()
_BOOTSTRAP = "bootstrap"
"""A bundle with a program of this name is native: the program runs instead of a Python handler."""
_SHOWN_OUTPUT = 4000


class RunningProgram(Protocol):
    """A program in a sandbox: in this process, or in the spawner."""

    def wait(self) -> Ended: ...

    def kill(self) -> None: ...


class FunctionFailed(TraceError, code="function_failed", retryable=True):
    """The function ended with an error. The message has the end of its output."""


class FunctionOverLimit(TraceError, code="function_over_limit"):
    """The function used more memory or time than it may."""


class BundleRefused(TraceError, code="bundle_refused"):
    """The bundle is missing or is not the one that was pushed."""


class BundleUnavailable(TraceError, code="bundle_unavailable", retryable=True):
    """The object store does not answer."""


@dataclass
class FunctionRunner:
    """Runs each attempt in a sandbox of its own."""

    objects: ObjectStore
    upstream: PlatformClients
    directory: Path
    runtimes: Mapping[str, Runtime]
    start: Callable[[Program, Callable[[bytes], None]], RunningProgram]
    """Starts a program in a sandbox, and passes its output on."""
    _running: dict[UUID, RunningProgram] = field(default_factory=dict[UUID, RunningProgram])
    _canceled: set[UUID] = field(default_factory=set[UUID])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, task: TaskPayload, link: DispatcherLink | None = None) -> TaskResult:
        """Run the function of a task. Raises TraceError."""
        if task.udf is None or link is None or link.token is None:
            raise BundleRefused(f"the task of the operator {task.operator} names no bundle")
        with self._make_directory(task) as place, self._track(task.task_id):
            self._unpack(task.udf, place / "bundle")
            identity = AttemptIdentity(task.task_id, task.attempt, link.lease_token, link.token)
            sockets = _make_run_directory(task, place / "run")
            broker = Broker(sockets / "broker.sock", self.upstream, identity)
            try:
                ended = self._run_sandbox(task, task.udf, place, link)
            finally:
                broker.close()
            self._check(task, ended, link)
            return _make_result(task, broker.published)

    def cancel(self, task_id: UUID) -> None:
        """End the function of a task at once."""
        with self._lock:
            self._canceled.add(task_id)
            process = self._running.get(task_id)
        if process is not None:
            process.kill()

    def cool(self) -> None:
        """Do nothing: each attempt has a sandbox of its own, and none is kept."""

    def _runtime(self, task: TaskPayload) -> Runtime:
        runtime = self.runtimes.get(task.runtime)
        if runtime is None:
            raise BundleRefused(f"this worker does not serve the runtime {task.runtime!r}")
        return runtime

    def _limits(self, task: TaskPayload) -> Limits:
        runtime = self._runtime(task)
        return Limits(
            memory_bytes=runtime.memory_mib * MIB,
            processes=runtime.processes,
            temporary_bytes=runtime.temporary_mib * MIB,
            wall_seconds=float(task.timeout_seconds),
        )

    @contextmanager
    def _make_directory(self, task: TaskPayload) -> Generator[Path]:
        place = self.directory / f"{task.task_id}-{task.attempt}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700, parents=True)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    @contextmanager
    def _track(self, task_id: UUID) -> Generator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._running.pop(task_id, None)
                self._canceled.discard(task_id)

    def _unpack(self, function: TaskFunction, directory: Path) -> None:
        try:
            content = self.objects.get_untrusted(
                key_of_url(function.bundle_url), max_bytes=MAX_ZIP_BYTES
            )
            unpack_bundle(content, function.sha256, directory)
        except ObjectMissing as error:
            raise BundleRefused(f"bundle {function.bundle} is not in the object store") from error
        except StorageError as error:
            raise BundleUnavailable(f"bundle {function.bundle}: {error}") from error
        except BadBundle as error:
            raise BundleRefused(f"bundle {function.bundle} {error}") from error

    def _run_sandbox(
        self, task: TaskPayload, function: TaskFunction, place: Path, link: DispatcherLink
    ) -> Ended:
        assert link.token
        program = Program(
            command=_make_command(function, place / "bundle"),
            environment={
                "TRACE_TASK_CAPABILITY_TOKEN": link.token(),
                "TRACE_SOCKET": f"{SOCKETS}/broker.sock",
                "TRACE_EVENT_FILE": f"{SOCKETS}/event.json",
            },
            files=[
                Shown(place / "bundle", BUNDLE),
                Shown(place / "run", SOCKETS),
            ],
            limits=self._limits(task),
        )
        with self._lock:
            if task.task_id in self._canceled:
                raise FunctionFailed("canceled before it started")
            process = self._running[task.task_id] = self.start(program, link.log)
        return process.wait()

    def _check(self, task: TaskPayload, ended: Ended, link: DispatcherLink) -> None:
        """Raise the error of a function that did not succeed."""
        output = link.mask(ended.output.decode("utf-8", "replace"))
        _log.info(
            "function_ended",
            task_id=str(task.task_id),
            reason=ended.reason,
            exit_code=ended.exit_code,
            output=output[-_SHOWN_OUTPUT:],
        )
        if ended.reason == "memory":
            limit = self._runtime(task).memory_mib
            raise FunctionOverLimit(
                f"used more than {limit} MiB of memory, the limit of {task.runtime}"
            )
        if ended.reason != "exited" or ended.exit_code != 0:
            how = f"exit code {ended.exit_code}" if ended.reason == "exited" else ended.reason
            raise FunctionFailed(f"{how}: {output[-_SHOWN_OUTPUT:].strip() or 'no output'}")


def _make_run_directory(task: TaskPayload, directory: Path) -> Path:
    """Make the directory with the event and the socket. The user of the sandbox reads it."""
    directory.mkdir()
    event = directory / "event.json"
    event.write_text(task.model_dump_json())
    event.chmod(0o644)
    directory.chmod(0o755)
    return directory


def _make_command(function: TaskFunction, bundle: Path) -> list[str]:
    if (bundle / _BOOTSTRAP).is_file():
        return [f"{BUNDLE}/{_BOOTSTRAP}"]
    if "." not in function.handler:
        rule = "must be `module.function`, or the bundle must have the program `bootstrap`"
        raise BundleRefused(f"handler {function.handler!r} {rule}")
    script = f"{MODULES}/trace_etl/sdk/bootstrap.py"
    event = f"{SOCKETS}/event.json"
    return [bubblewrap.PYTHON, "-I", "-u", script, function.handler, BUNDLE, event]


def _make_result(task: TaskPayload, published: dict[str, PublishedRows]) -> TaskResult:
    return TaskResult(outputs=[_make_output(task, out, published) for out in task.outputs])


def _make_output(
    task: TaskPayload, output: TaskOutput, published: dict[str, PublishedRows]
) -> Output:
    counted = published.get(str(output.dataset_uuid), PublishedRows())
    scope = task.scope or Scope()
    return Output(
        output_index=output.output_index,
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        location=output.storage_ref.ref().url,
        cursor=scope.cursor,
        partition_key=scope.output_key,
        row_count=counted.rows,
        byte_count=counted.bytes,
    )
