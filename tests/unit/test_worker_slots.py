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
from trace_etl.worker.slots import Slots


class WakeUps:
    """A queue with one wake-up for each task."""

    def __init__(self, task_ids: list[UUID]) -> None:
        self._messages = [
            Message("ecs_python", {"task_id": str(task_id)}, f"{n}.1", 1)
            for n, task_id in enumerate(task_ids)
        ]

    def receive(self, *, stop: threading.Event, **options: Any) -> list[Message]:
        if self._messages:
            return [self._messages.pop(0)]
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

    def cancel(self, task_id: UUID) -> None:
        self._over.set()


def started_operators(
    operators: list[str], engine: str = "loop", *, next_timeout: float = 60
) -> Iterator[str]:
    """Yield the operators that a worker with one slot starts, in order."""
    payloads = [task(name, {"engine": engine}, ["hot_logs"]) for name in operators]
    runner, stop = Running(), threading.Event()
    queue = WakeUps([payload.task_id for payload in payloads])
    slots = Slots(
        cast("Any", queue),
        cast("Any", AcceptingDispatcher(payloads)),
        runner,
        worker_id="w",
        size=1,
        stop=stop,
    )
    thread = threading.Thread(target=slots.run)
    thread.start()
    try:
        yield runner.started.get(timeout=60)
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
