"""Run attempts whose runner waits until they end, each in a thread."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol
from uuid import UUID

from trace_etl.api.task.lifecycle import TaskPayload, TaskResult
from trace_etl.spark.dispatcher_link import DispatcherLink


class WaitingRunner(Protocol):
    """Runs an attempt until it ends."""

    def run(self, task: TaskPayload, link: DispatcherLink) -> TaskResult: ...

    def cancel(self, task_id: UUID, attempt: int, within: float) -> None: ...


class ThreadedRunner:
    """Runs up to `slots` attempts at once."""

    def __init__(self, runner: WaitingRunner, slots: int) -> None:
        self._runner = runner
        self._threads = ThreadPoolExecutor(slots, "slot")

    def start(self, task: TaskPayload, link: DispatcherLink) -> Future[TaskResult]:
        return self._threads.submit(self._runner.run, task, link)

    def cancel(self, task_id: UUID, attempt: int, within: float) -> None:
        self._runner.cancel(task_id, attempt, within)

    def close(self) -> None:
        """End the threads. All attempts have ended."""
        self._threads.shutdown()
