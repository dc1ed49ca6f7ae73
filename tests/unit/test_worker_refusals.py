"""What a worker reports about an attempt: its isolation, and a completion that was refused."""

import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from support.functions import Platform, make_invocation, platform
from support.spark.spark_tasks import task
from trace_etl.api.task import lifecycle as bodies
from trace_etl.api.task.payload import InvalidScope, Scope
from trace_etl.dag.runtimes import shipped_runtimes
from trace_etl.http.clients.dispatcher_client import Refused
from trace_etl.objects.file_store import FileStore
from trace_etl.policy.bundles import build_bundle
from trace_etl.sandbox.errors import SandboxUnavailable
from trace_etl.sandbox.process import Program, SandboxedProcess
from trace_etl.worker.attempt import Attempt, AttemptServices
from trace_etl.worker.functions.function_results import Bundles
from trace_etl.worker.functions.function_runner import FunctionRunner
from trace_etl.worker.functions.threaded_runner import ThreadedRunner, WaitingRunner

RANGE = Scope(partition_key="0-9", start=0, end=9)
CURSOR = Scope(cursor=105, after=71)
CHANGE = InvalidScope(
    invalidation_id=uuid4(), dataset_uuid=uuid4(), dataset_version=uuid4(), kind="row_range"
)


class RefusingDispatcher:
    """A Dispatcher that refuses every success."""

    def __init__(self, code: str) -> None:
        self._code = code
        self.heard: list[bodies.Complete] = []

    def complete(self, body: bodies.Complete, *arguments: object) -> None:
        if body.status == "Completed":
            raise Refused(409, self._code, "no")
        self.heard.append(body)


class InstantRunner:
    def run(self, task: bodies.TaskPayload, link: object = None) -> bodies.TaskResult:
        return bodies.TaskResult()

    def cancel(self, task_id: UUID, attempt: int, within: float) -> None:
        raise AssertionError("the worker must not cancel the task")


class SandboxRunner(InstantRunner):
    """A runner whose sandbox starts, or does not. It ends when the Dispatcher has had a heartbeat."""

    def __init__(self, dispatcher: "RecordingDispatcher", *, starts: bool) -> None:
        self._dispatcher, self._starts = dispatcher, starts

    def run(self, task: bodies.TaskPayload, link: Any = None) -> bodies.TaskResult:
        if not self._starts:
            raise SandboxUnavailable("no namespaces", "allow them")
        link.isolated("namespaces")
        assert self._dispatcher.was_called.wait(120)
        return bodies.TaskResult()


class RecordingDispatcher:
    def __init__(self) -> None:
        self.heartbeats: list[bodies.Heartbeat] = []
        self.completed: list[bodies.Complete] = []
        self.was_called = threading.Event()

    def heartbeat(self, body: bodies.Heartbeat, *_: object, timeout: float) -> Any:
        self.heartbeats.append(body)
        self.was_called.set()
        return bodies.HeartbeatAccepted(lease_expires_at=datetime.now(UTC))

    def complete(self, body: bodies.Complete, *_: object) -> None:
        self.completed.append(body)

    def log(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("starts", [True, False])
def test_the_isolation_is_reported_once_the_sandbox_has_started(starts: bool) -> None:
    dispatcher = RecordingDispatcher()
    client, runner = cast("Any", dispatcher), SandboxRunner(dispatcher, starts=starts)
    claimed = make_claimed(task("udf", {}, ["out"]))
    run_attempt(claimed, client, runner)
    level = "namespaces" if starts else None
    assert [body.isolation for body in dispatcher.heartbeats] == [level] * starts
    assert [body.isolation for body in dispatcher.completed] == [level]


def run_attempt(claimed: bodies.Claimed, client: Any, runner: WaitingRunner) -> bool:
    """Run an attempt until its end. Returns whether the Dispatcher has decided on it."""
    ended = SimpleQueue[bool]()
    with (
        closing(ThreadedRunner(runner, 1)) as threaded,
        closing(AttemptServices.open(client, threaded)) as services,
    ):
        Attempt(claimed, services, threading.Event(), lambda: None, ended.put).start()
        return ended.get(timeout=300)


def make_claimed(payload: bodies.TaskPayload) -> bodies.Claimed:
    return bodies.Claimed(
        attempt=1,
        lease_token=uuid4(),
        lease_expires_at=datetime.now(UTC),
        capability_token="",
        task=payload,
    )


def reported_completions(code: str, **fields: Any) -> list[bodies.Complete]:
    payload = task("sql", {}, ["out"]).model_copy(update=fields)
    claimed = make_claimed(payload)
    dispatcher = RefusingDispatcher(code)
    client = cast("Any", dispatcher)
    run_attempt(claimed, client, InstantRunner())
    return dispatcher.heard


@pytest.mark.parametrize(
    ("code", "fields", "retryable"),
    [
        ("output_not_ready", {"scope": RANGE}, True),
        ("forbidden", {"scope": RANGE}, False),
        ("partition_overlap", {"scope": RANGE}, False),
        ("partition_overlap", {"scope": CURSOR, "invalidation": CHANGE}, False),
        (
            "partition_overlap",
            {"scope": CURSOR},
            True,
        ),  # the next attempt starts at another position
    ],
)
def test_a_refused_completion_fails_with_its_reason_and_is_retried_if_useful(
    code: str, fields: dict[str, Any], retryable: bool
) -> None:
    (reported,) = reported_completions(code, **fields)
    assert (reported.status, reported.error_code, reported.retryable) == ("Failed", code, retryable)


def test_a_worker_that_lost_its_lease_reports_nothing() -> None:
    assert reported_completions("lease_lost", scope=RANGE) == []


class LosingDispatcher:
    """A Dispatcher that gives the lease to another attempt as soon as the function has called."""

    def __init__(self, services: Platform) -> None:
        self._services = services
        self.reports: list[bodies.Complete] = []

    def heartbeat(self, *call: object, timeout: float) -> bodies.HeartbeatAccepted:
        if self._services.calls:
            raise Refused(409, "lease_lost", "another attempt runs")
        return bodies.HeartbeatAccepted(lease_expires_at=datetime.now(UTC))

    def log(self, *call: object) -> None:
        pass

    def complete(self, body: bodies.Complete, *call: object) -> None:
        self.reports.append(body)


@pytest.mark.usefixtures("sandbox")
def test_a_lost_lease_ends_the_function_that_runs(tmp_path: Path) -> None:
    source, objects = tmp_path / "source", FileStore(tmp_path / "objects")
    source.mkdir()
    code = "def handler(event, context):\n    while True: context.task.heartbeat()"
    (source / "rule.py").write_text(code)
    bundle = build_bundle(source)
    objects.put("org/zip", bundle.content)
    started: list[SandboxedProcess] = []

    def start(program: Program, on_output: Callable[[bytes], None]) -> SandboxedProcess:
        started.append(SandboxedProcess(program, on_output=on_output))
        return started[-1]

    with platform() as (services, upstream):
        bundles = Bundles(objects, shipped_runtimes().entries)
        runner = FunctionRunner(bundles, upstream, tmp_path / "functions", start)
        changes = {"runtime": "ecs_udf_python", "heartbeat_seconds": 0.05}
        invocation = make_invocation(bundle.sha256, **changes)
        dispatcher = LosingDispatcher(services)
        client = cast("Any", dispatcher)
        assert run_attempt(invocation.claimed(), client, runner)
        assert dispatcher.reports == []  # the next attempt reports
        [process] = started
        assert process.wait().reason == "killed"
        assert list((tmp_path / "functions").iterdir()) == []
