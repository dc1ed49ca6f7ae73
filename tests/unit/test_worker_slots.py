"""A worker's slots: a fixed number of concurrent attempts, plus attempts that never end."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from queue import Empty, Queue
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from support.spark.spark_tasks import task
from support.waiting import eventually
from trace_etl.api.task import lifecycle as bodies
from trace_etl.queues.queue import Message
from trace_etl.spark.dispatcher_link import DispatcherLink
from trace_etl.worker.functions.threaded_runner import ThreadedRunner
from trace_etl.worker.settings import ServedRuntimes
from trace_etl.worker.slots import Slots


class WakeUps:
    """A queue with one wake-up for each task."""

    def __init__(self, task_ids: list[UUID], queues: list[str] | None = None) -> None:
        names = queues or ["ecs_python"] * len(task_ids)
        self.deleted: list[str] = []
        self._messages = [
            Message(queue, {"task_id": str(task_id)}, f"{n}.1", 1)
            for n, (task_id, queue) in enumerate(zip(task_ids, names, strict=True))
        ]

    def receive(
        self, *, limit: int, stop: threading.Event, queues: list[str], **options: Any
    ) -> list[Message]:
        found = [message for message in self._messages if message.queue in queues][:limit]
        self._messages = [message for message in self._messages if message not in found]
        if not found:
            stop.wait(0.01)
        return found

    def stay_connected(self) -> None:
        pass

    def extend(self, message: Message, visibility: timedelta) -> None:
        pass

    def delay(self, message: Message, delay: timedelta, *, counted: bool) -> None:
        assert not delay and not counted
        self._messages.append(message)

    def delete(self, *messages: Message) -> None:
        self.deleted += [message.body["task_id"] for message in messages]


class AcceptingDispatcher:
    """A Dispatcher that accepts every claim."""

    def __init__(self, payloads: list[bodies.TaskPayload]) -> None:
        self._payloads = {payload.task_id: payload for payload in payloads}
        self.claims: list[list[UUID]] = []
        self.heartbeats = 0
        self.results: list[bodies.Complete] = []

    def claim_many(
        self, task_ids: list[UUID], worker_id: str, stop: threading.Event
    ) -> dict[UUID, bodies.Claimed]:
        self.claims.append(task_ids)
        known = [task_id for task_id in task_ids if task_id in self._payloads]
        return {task_id: self._claim(task_id) for task_id in known}

    def claim(self, task_id: UUID, worker_id: str, stop: threading.Event) -> bodies.Claimed:
        self.claims.append([task_id])
        return self._claim(task_id)

    def _claim(self, task_id: UUID) -> bodies.Claimed:
        return bodies.Claimed(
            attempt=1,
            lease_token=uuid4(),
            lease_expires_at=datetime.now(UTC),
            capability_token="",
            task=self._payloads[task_id],
        )

    def heartbeat(self, *call: object, timeout: float) -> bodies.HeartbeatAccepted:
        self.heartbeats += 1
        return bodies.HeartbeatAccepted(lease_expires_at=datetime.now(UTC))

    def log(self, *call: object) -> None:
        pass

    def complete(self, body: bodies.Complete, *call: object) -> None:
        self.results.append(body)

    def complete_many(self, sent: list[tuple[bodies.Complete, str]], stop: object) -> list[None]:
        self.results += [body for body, _ in sent]
        return [None] * len(sent)


class Running:
    """A runner whose tasks run until they are canceled."""

    def __init__(self) -> None:
        self.started: Queue[str] = Queue()
        self.canceled: list[tuple[UUID, int]] = []
        self.over = threading.Event()

    def run(self, task: bodies.TaskPayload, link: DispatcherLink) -> bodies.TaskResult:
        self.started.put(task.operator)
        self.over.wait(120)
        link.check()
        return bodies.TaskResult()

    def cancel(self, task_id: UUID, attempt: int, within: float) -> None:
        self.canceled.append((task_id, attempt))
        self.over.set()


ONE_SLOT = ServedRuntimes({}, {"ecs_python": 1}, 1)


def started_operators(
    operators: list[str],
    engine: str = "loop",
    *,
    next_timeout: float = 60,
    served: ServedRuntimes = ONE_SLOT,
    queues: list[str] | None = None,
) -> Iterator[str]:
    """Yield the operators that a worker starts, in order; of a worker with one slot by default."""
    payloads = [task(name, {"engine": engine}, ["hot_logs"]) for name in operators]
    runner, stop = Running(), threading.Event()
    threaded = ThreadedRunner(runner, 8)
    queue = WakeUps([payload.task_id for payload in payloads], queues)
    slots = Slots(
        cast("Any", queue),
        cast("Any", AcceptingDispatcher(payloads)),
        threaded,
        served,
        worker_id="w",
        stop=stop,
    )
    thread = threading.Thread(target=slots.run)
    thread.start()
    try:
        yield runner.started.get(timeout=300)
        for _ in operators[1:]:
            yield runner.started.get(timeout=next_timeout)
    finally:
        stop.set()
        thread.join(120)
        assert not thread.is_alive()
        threaded.close()


@pytest.mark.parametrize("engine", ["loop", "streaming"])
def test_endless_tasks_do_not_occupy_slots(engine: str) -> None:
    names = ["block_follower", "block_follower", "sql"]
    assert sorted(started_operators(names, engine)) == names


def test_one_slot_runs_one_attempt_at_a_time() -> None:
    started = started_operators(["sql", "sql"], next_timeout=1)
    assert next(started) == "sql"
    with pytest.raises(Empty):
        next(started)


def test_a_full_queue_does_not_delay_another_one() -> None:
    served = ServedRuntimes({}, {"ecs_python": 1, "slow": 1}, 2)
    operators, queues = ["slow1", "slow2", "sql"], ["slow", "slow", "ecs_python"]
    started = started_operators(operators, served=served, queues=queues, next_timeout=1)
    assert {next(started), next(started)} == {"slow1", "sql"}
    with pytest.raises(Empty):
        next(started)


@contextmanager
def stopping(drain_seconds: float) -> Iterator[tuple[AcceptingDispatcher, Running]]:
    """Tell a worker to stop while its task runs, and wait until it has stopped."""
    payloads = [
        task("sql", {}, ["rows"]).model_copy(update={"heartbeat_seconds": 0.05}) for _ in range(2)
    ]
    dispatcher, runner, stop = AcceptingDispatcher(payloads), Running(), threading.Event()
    threaded = ThreadedRunner(runner, 8)
    slots = Slots(
        cast("Any", WakeUps([payload.task_id for payload in payloads])),
        cast("Any", dispatcher),
        threaded,
        ONE_SLOT,
        worker_id="w",
        stop=stop,
        drain_seconds=drain_seconds,
    )
    thread = threading.Thread(target=slots.run)
    thread.start()
    try:
        assert runner.started.get(timeout=300) == "sql"
        stop.set()
        yield dispatcher, runner
    finally:
        if drain_seconds:
            runner.over.set()
        thread.join(300)
        assert not thread.is_alive()
        threaded.close()


def test_a_worker_that_stops_lets_its_task_end_and_claims_no_other() -> None:
    with stopping(drain_seconds=3600) as (dispatcher, runner):
        before = dispatcher.heartbeats
        eventually(lambda: dispatcher.heartbeats > before + 2 or dispatcher.results, "it goes on")
        runner.over.set()
    assert [result.status for result in dispatcher.results] == ["Completed"]
    assert runner.started.empty()


def test_a_wake_up_that_arrives_with_the_stop_of_the_worker_is_left_to_another_one() -> None:
    class Stopping(WakeUps):
        def receive(self, *, stop: threading.Event, **options: Any) -> list[Message]:
            found = super().receive(stop=stop, **options)
            stop.set()
            return found

    payload = task("sql", {}, ["rows"])
    wakes, dispatcher = Stopping([payload.task_id]), AcceptingDispatcher([payload])
    stop = threading.Event()
    runner = ThreadedRunner(Running(), 1)
    Slots(
        cast("Any", wakes), cast("Any", dispatcher), runner, ONE_SLOT, worker_id="w", stop=stop
    ).run()
    runner.close()
    assert (dispatcher.claims, wakes.deleted) == ([], [])
    assert len(wakes.receive(limit=1, stop=stop, queues=["ecs_python"])) == 1


def test_a_task_that_does_not_end_in_time_is_interrupted() -> None:
    with stopping(drain_seconds=0) as (dispatcher, runner):
        pass
    [result] = dispatcher.results
    assert runner.canceled == [(result.task_id, 1)]
    assert (result.status, result.error_code) == ("Failed", "worker_stopped")


def test_a_worker_claims_as_many_tasks_in_one_call_as_it_has_slots() -> None:
    payloads = [task("sql", {}, ["rows"]) for _ in range(4)]
    canceled = uuid4()  # its claim does not succeed
    ids = [payload.task_id for payload in payloads]
    wakes = WakeUps([ids[0], canceled, *ids[1:]])
    dispatcher, runner, stop = AcceptingDispatcher(payloads), Running(), threading.Event()
    served = ServedRuntimes({}, {"ecs_python": 3}, 3)
    threaded = ThreadedRunner(runner, 3)
    slots = Slots(
        cast("Any", wakes),
        cast("Any", dispatcher),
        threaded,
        served,
        worker_id="w",
        stop=stop,
    )
    thread = threading.Thread(target=slots.run)
    thread.start()
    try:
        for _ in range(3):
            runner.started.get(timeout=300)
        # Two of three claims succeeded, so one slot is left for the next claim.
        assert dispatcher.claims == [[ids[0], canceled, ids[1]], [ids[2]]]
        assert wakes.deleted == [str(canceled)]
        runner.over.set()
        runner.started.get(timeout=300)
        eventually(lambda: len(dispatcher.results) == 4)
    finally:
        stop.set()
        runner.over.set()
        thread.join(300)
        threaded.close()
    assert {result.status for result in dispatcher.results} == {"Completed"}
    assert sorted(wakes.deleted) == sorted(map(str, [*ids, canceled]))
