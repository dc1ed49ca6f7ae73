"""What the attempts of functions have in common: their bundles, their results and their errors."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trace_etl.api.task.lifecycle import Output, TaskPayload, TaskResult
from trace_etl.api.task.payload import Scope, TaskFunction, TaskOutput
from trace_etl.dag.runtimes import Runtime
from trace_etl.model.bundles import MAX_ZIP_BYTES
from trace_etl.model.errors import TraceError
from trace_etl.model.storage import key_of_url
from trace_etl.objects.errors import ObjectMissing, StorageError
from trace_etl.objects.store import ObjectStore
from trace_etl.policy.bundles import BadBundle, unpack_bundle
from trace_etl.sandbox.broker.broker import PublishedRows
from trace_etl.sandbox.doctor import explain_namespaces
from trace_etl.sandbox.errors import SandboxUnavailable
from trace_etl.sandbox.process import Ended
from trace_etl.worker.functions.bundle_programs import BundleRefused

_BWRAP = "bwrap: "
SHOWN_OUTPUT = 4000
"""The maximum number of characters of output in an error message."""


class RunningProgram(Protocol):
    """A program in a sandbox: in this process, or in the spawner."""

    def wait_for_start(self) -> bool:
        """Wait until the program runs. False: the sandbox could not be made, and `wait` says why."""
        ...

    def wait(self) -> Ended: ...

    def kill(self) -> None: ...

    def suspend(self) -> None: ...

    def resume(self) -> None: ...

    def flush_output(self) -> None: ...


class FunctionFailed(TraceError, code="function_failed", retryable=True):
    """The function ended with an error. The message has the end of its output."""


class FunctionOverLimit(TraceError, code="function_over_limit"):
    """The function used more memory than it may."""


class BundleUnavailable(TraceError, code="bundle_unavailable", retryable=True):
    """The object store does not answer."""


@dataclass(frozen=True)
class Bundles:
    """Fetches the bundles of tasks, and knows the runtimes that this worker serves."""

    objects: ObjectStore
    runtimes: Mapping[str, Runtime]

    def runtime(self, task: TaskPayload) -> Runtime:
        """Return the runtime of a task. Raises BundleRefused."""
        if (runtime := self.runtimes.get(task.runtime)) is None:
            raise BundleRefused(
                f"this worker does not serve the runtime {task.runtime!r}; correct TRACE_RUNTIMES"
            )
        return runtime

    def unpack(self, function: TaskFunction, directory: Path) -> None:
        """Fetch, verify and unpack a bundle. Raises BundleRefused and BundleUnavailable."""
        try:
            key = key_of_url(function.bundle_url)
            content = self.objects.get_untrusted(key, max_bytes=MAX_ZIP_BYTES)
            unpack_bundle(content, function.sha256, directory)
        except ObjectMissing as error:
            raise BundleRefused(
                f"bundle {function.bundle} is not in the object store; push it again"
            ) from error
        except StorageError as error:
            raise BundleUnavailable(f"bundle {function.bundle}: {error}") from error
        except BadBundle as error:
            raise BundleRefused(f"bundle {function.bundle} {error}") from error


def raise_if_refused(output: str) -> None:
    """Raise SandboxUnavailable, with the fix, if a program that did not start left a message."""
    if lines := output.strip().splitlines():
        problem = lines[-1].removeprefix(_BWRAP)
        raise SandboxUnavailable(
            f"no sandbox could be made: {problem}", explain_namespaces(problem)
        )


def over_memory(runtime: Runtime, name: str) -> FunctionOverLimit:
    """Return the error of a function that used too much memory."""
    limit = runtime.memory_mib
    return FunctionOverLimit(f"used more than {limit} MiB of memory, the limit of {name}")


def make_result(task: TaskPayload, published: Mapping[str, PublishedRows]) -> TaskResult:
    """Return the result of a function that succeeded, with what it published."""
    return TaskResult(outputs=[_make_output(task, out, published) for out in task.outputs])


def _make_output(
    task: TaskPayload, output: TaskOutput, published: Mapping[str, PublishedRows]
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
