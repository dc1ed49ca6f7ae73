"""Attempts of a streaming follower on a runner that may lose its Spark session."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from queue import Queue
from typing import Any

from support.chain.growing_chain import new_chain
from support.spark.spark_tasks import task
from trace_etl.api.task.events import Event
from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.devtools.devchain import start_server
from trace_etl.spark.dispatcher_link import DispatcherLink
from trace_etl.spark.runner import SparkRunner


class FollowerAttempts:
    """A chain of ten blocks, and the attempts of one task that follows it."""

    def __init__(self, runner: SparkRunner, dsn: str) -> None:
        self.server = start_server(new_chain(initial=10)).__enter__()  # until the process ends
        self.reported_cursors: Queue[int | None] = Queue()
        pools = {"default": (self.server.url,)}
        self._runner = SparkRunner(replace(runner.settings, data_dsn=dsn, rpc_pools=pools))
        self._runner.session = runner.session
        config = {"engine": "streaming", "start_block": 0, "poll_seconds": 0.05}
        self._task = task("block_follower", config, ["hot_blocks"])
        self._threads = ThreadPoolExecutor(2)

    def attempt(self, number: int) -> Future[TaskResult]:
        payload = self._task.model_copy(update={"attempt": number})
        return self._threads.submit(self._runner.run, payload, DispatcherLink(self._report))

    def cancel(self) -> None:
        self._runner.cancel(self._task.task_id)

    def _report(self, events: Sequence[Event], invalidations: Sequence[Any] = ()) -> None:
        self.reported_cursors.put(events[0].cursor)
