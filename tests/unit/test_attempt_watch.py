"""Attempts that run beside each other share a few threads, and each is looked after by itself."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any, cast
from uuid import UUID, uuid4

from support.spark.spark_tasks import task
from support.waiting import eventually
from trace_etl.api.task import lifecycle as bodies
from trace_etl.http.clients.dispatcher_client import Refused, Unreachable
from trace_etl.spark.dispatcher_link import DispatcherLink
from trace_etl.worker.attempt import Attempt, AttemptServices


class Dispatcher:
    """Accepts everything, except heartbeats of the tasks in `lost`, unless a test says otherwise."""

    def __init__(self) -> None:
        self.heartbeats: Counter[UUID] = Counter()
        self.results: dict[UUID, bodies.Complete] = {}
        self.output: dict[UUID, str] = {}
        self.lost: set[UUID] = set()
        self.is_away = self.is_broken = self.is_odd = False

    def heartbeat(self, body: bodies.Heartbeat, *_: object, timeout: float) -> Any:
        self.heartbeats[body.task_id] += 1
        if body.task_id in self.lost:
            raise Refused(409, "lease_lost", "another attempt runs")
        if self.is_away:
            raise Unreachable("away")
        return bodies.HeartbeatAccepted(lease_expires_at=datetime.now(UTC))

    def pause_after(self, failures: int) -> float:
        return 0.01

    def log(self, body: bodies.LogOutput, *_: object) -> None:
        self.output[body.task_id] = self.output.get(body.task_id, "") + body.text

    def complete(self, body: bodies.Complete, *_: object) -> None:
        if self.is_broken:
            raise RuntimeError("a defect")
        if self.is_odd:
            raise Refused(409, "No code of ours!", "odd")
        self.results[body.task_id] = body

    def complete_many(self, sent: list[tuple[bodies.Complete, str]], _: object) -> list[None]:
        for body, _token in sent:
            self.complete(body)
        return [None] * len(sent)


class Operators:
    """A runner whose operators end when the test says so."""

    def __init__(self) -> None:
        self.results: dict[UUID, Future[bodies.TaskResult]] = {}
        self.links: dict[UUID, DispatcherLink] = {}
        self.canceled: list[UUID] = []

    def start(self, task: bodies.TaskPayload, link: DispatcherLink) -> Future[bodies.TaskResult]:
        self.links[task.task_id] = link
        self.results[task.task_id] = Future()
        return self.results[task.task_id]

    def cancel(self, task_id: UUID, attempt: int, within: float) -> None:
        self.canceled.append(task_id)
        self.results[task_id].set_exception(RuntimeError("canceled"))

    def end_all(self) -> None:
        for result in self.results.values():
            result.set_result(bodies.TaskResult())


class Scene:
    def __init__(self) -> None:
        self.dispatcher, self.operators = Dispatcher(), Operators()
        self.services = AttemptServices.open(cast("Any", self.dispatcher), self.operators)
        self.ended: SimpleQueue[bool] = SimpleQueue()

    def start(self, stopping: threading.Event | None = None, **changes: object) -> UUID:
        changes = {"heartbeat_seconds": 0.05, **changes}
        payload = task("sql", {}, ["rows"]).model_copy(update=changes)
        claimed = bodies.Claimed(
            attempt=1,
            lease_token=uuid4(),
            lease_expires_at=datetime.now(UTC),
            capability_token="a-token",
            task=payload,
        )
        stopping = stopping or threading.Event()
        Attempt(claimed, self.services, stopping, lambda: None, self.ended.put).start()
        return payload.task_id

    def wait_for_end(self) -> bool:
        return self.ended.get(timeout=120)


def with_scene(test: Callable[[Scene], None]) -> None:
    scene = Scene()
    with closing(scene.services):
        test(scene)


def test_many_attempts_share_a_few_threads() -> None:
    def run(scene: Scene) -> None:
        before = threading.active_count()
        ids = [scene.start() for _ in range(100)]
        beats = scene.dispatcher.heartbeats
        eventually(lambda: all(beats[task_id] > 2 for task_id in ids), "each sends heartbeats")
        assert threading.active_count() - before < 60
        scene.operators.end_all()
        assert all(scene.wait_for_end() for _ in ids)
        assert {body.status for body in scene.dispatcher.results.values()} == {"Completed"}
        assert scene.dispatcher.results.keys() == set(ids)

    with_scene(run)


def test_a_lost_lease_cancels_only_its_own_attempt_which_reports_nothing() -> None:
    def run(scene: Scene) -> None:
        lost, kept = scene.start(), scene.start()
        scene.dispatcher.lost.add(lost)
        assert scene.wait_for_end()
        assert scene.operators.canceled == [lost]
        assert scene.dispatcher.results == {}
        scene.operators.results[kept].set_result(bodies.TaskResult())
        assert scene.wait_for_end()
        assert scene.dispatcher.results[kept].status == "Completed"

    with_scene(run)


def test_an_attempt_that_runs_too_long_fails() -> None:
    def run(scene: Scene) -> None:
        late = scene.start(timeout_seconds=0)
        assert scene.wait_for_end()
        result = scene.dispatcher.results[late]
        assert (result.status, result.error_code) == ("Failed", "hard_timeout")

    with_scene(run)


def test_a_worker_that_stops_interrupts_an_attempt_that_waits_long_for_its_heartbeat() -> None:
    def run(scene: Scene) -> None:
        stopping = threading.Event()
        stopped = scene.start(stopping, heartbeat_seconds=3600)
        stopping.set()
        assert scene.wait_for_end()
        assert scene.dispatcher.results[stopped].error_code == "worker_stopped"

    with_scene(run)


def test_heartbeats_are_repeated_sooner_in_an_outage() -> None:
    def run(scene: Scene) -> None:
        scene.dispatcher.is_away = True
        task_id = scene.start(heartbeat_seconds=0.5)
        eventually(lambda: scene.dispatcher.heartbeats[task_id] > 20, "heartbeats are repeated")
        scene.operators.end_all()
        assert scene.wait_for_end()

    with_scene(run)


def test_output_is_sent_while_the_operator_runs_and_before_its_end() -> None:
    def run(scene: Scene) -> None:
        task_id = scene.start(heartbeat_seconds=3600)
        scene.operators.links[task_id].log(b"first\n")
        eventually(lambda: scene.dispatcher.output.get(task_id) == "first\n", "it is sent")
        scene.operators.links[task_id].log(b"a-token, and no end of the line")
        scene.operators.end_all()
        assert scene.wait_for_end()
        assert scene.dispatcher.output[task_id] == "first\n***, and no end of the line"

    with_scene(run)


class Broken:
    def __init__(self) -> None:
        self.checks = 0

    def check(self, now: float) -> float:
        self.checks += 1
        raise RuntimeError("a defect")


def test_a_check_that_fails_does_not_end_the_heartbeats_of_other_attempts() -> None:
    def run(scene: Scene) -> None:
        broken = Broken()
        scene.services.watch.add(broken, 0.0)
        eventually(lambda: broken.checks > 0, "it is checked")
        task_id = scene.start()
        eventually(lambda: scene.dispatcher.heartbeats[task_id] > 2, "heartbeats are sent")
        scene.operators.end_all()
        assert scene.wait_for_end()

    with_scene(run)


def test_an_error_of_the_worker_itself_ends_the_attempt() -> None:
    def run(scene: Scene) -> None:
        scene.dispatcher.is_broken = True
        for _ in range(3):
            scene.start()
            scene.operators.end_all()
            scene.operators.results.clear()
            assert scene.wait_for_end() is False

    with_scene(run)


def test_an_answer_that_the_worker_cannot_handle_ends_the_attempt() -> None:
    def run(scene: Scene) -> None:
        scene.dispatcher.is_odd = True
        scene.start()
        scene.operators.end_all()
        assert scene.wait_for_end() is False

    with_scene(run)


def test_text_that_is_no_unicode_fails_like_other_text() -> None:
    def run(scene: Scene) -> None:
        task_id = scene.start()
        scene.operators.results[task_id].set_exception(RuntimeError("half \ud800"))
        assert scene.wait_for_end()
        assert scene.dispatcher.results[task_id].error_message == "RuntimeError: half ?"

    with_scene(run)
