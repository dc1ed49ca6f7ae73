"""A worker's slots: a fixed number of concurrent attempts, plus attempts that never end."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from queue import Empty, Queue
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from support.spark_tasks import task
from trace_etl.api.task import lifecycle as bodies
from trace_etl.queues.queue import Message
from trace_etl.worker.settings import ServedRuntimes
from trace_etl.worker.slots import Slots


class WakeUps:
    """A queue with one wake-up for each task."""

    def __init__(self, task_ids: list[UUID], queues: list[str] | None = None) -> None:
        names = queues or ["ecs_python"] * len(task_ids)
        self._messages = [
            Message(queue, {"task_id": str(task_id)}, f"{n}.1", 1)
            for n, (task_id, queue) in enumerate(zip(task_ids, names, strict=True))
        ]

    def receive(self, *, stop: threading.Event, queues: list[str], **options: Any) -> list[Message]:
        for message in self._messages:
            if message.queue in queues:
                self._messages.remove(message)
                return [message]
        stop.wait(0.01)
        return []

    def stay_connected(self) -> None:
        pass

    def extend(self, message: Message, visibility: timedelta) -> None:
        pass

    def delete(self, message: Message) -> None:
        pass


class AcceptingDispatcher:
    """A Dispatcher that accepts every claim."""

    def __init__(self, payloads: list[bodies.TaskPayload]) -> None:
        self._payloads = {payload.task_id: payload for payload in payloads}

    def claim(self, task_id: UUID, worker_id: str, stop: threading.Event) -> bodies.Claimed:
        return bodies.Claimed(
            attempt=1,
            lease_token=uuid4(),
            lease_expires_at=datetime.now(UTC),
            capability_token="",
            task=self._payloads[task_id],
        )

    def complete(self, *call: object) -> None:
        pass


class Running:
    """A runner whose tasks run until they are canceled."""

    def __init__(self) -> None:
        self.started: Queue[str] = Queue()
        self._over = threading.Event()

    def run(self, task: bodies.TaskPayload, link: object = None) -> bodies.TaskResult:
        self.started.put(task.operator)
        self._over.wait(120)
        return bodies.TaskResult()

    def cancel(self, task_id: UUID, within: float) -> None:
        self._over.set()


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
    queue = WakeUps([payload.task_id for payload in payloads], queues)
    slots = Slots(
        cast("Any", queue),
        cast("Any", AcceptingDispatcher(payloads)),
        runner,
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
