"""What an operator is handed for one attempt."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.sql import SparkSession

from trace_etl.api.task.payload import Scope, TaskInput, TaskPayload
from trace_etl.spark.errors import BadTask, TaskCanceled
from trace_etl.spark.io import hot_tables, inputs
from trace_etl.spark.io.inputs import Input
from trace_etl.spark.link import DispatcherLink, EmitEvents
from trace_etl.spark.settings import SparkSettings


@dataclass(frozen=True)
class OperatorContext:
    """One attempt, as its operator sees it. Spark and inputs come when they are asked for."""

    task: TaskPayload
    settings: SparkSettings
    lease: Callable[[], SparkSession]
    """Takes a session of the warm application for this task alone, until the attempt is over."""
    canceled: threading.Event = field(default_factory=threading.Event)
    """Set when the attempt shall end; an operator that waits, waits on this."""
    link: DispatcherLink | None = None

    @cached_property
    def spark(self) -> SparkSession:
        """This task's own session. Raises SparkNotStarted."""
        return self.lease()

    @cached_property
    def inputs(self) -> list[Input]:
        """Every input, pinned, cut to the scope and filtered. Raises InputMissing or BadTask."""
        return [self.load(given) for given in self.task.inputs]

    def load(self, given: TaskInput) -> Input:
        """One input, where others only wake the task. Raises InputMissing or BadTask."""
        scope, settings = self.task.scope, self.settings
        if given.partitions:
            return inputs.load(self.spark, given, scope, settings.objects_root)
        return hot_tables.load(self.spark, given, scope, settings.data_dsn)

    def input(self, name: str) -> Input:
        """The input of that name. Raises BadTask."""
        found = next((given for given in self.inputs if given.name == name), None)
        if found is None:
            names = ", ".join(given.name for given in self.task.inputs) or "none"
            raise BadTask(f"{self.task.operator}: no input is called {name} (inputs: {names})")
        return found

    @property
    def outputs(self) -> list[str]:
        """The outputs' names, in their order."""
        return [output.name for output in self.task.outputs]

    def block_range(self) -> tuple[int, int]:
        """The blocks the task is about, both inclusive. Raises BadTask without them."""
        scope = self.task.scope or Scope()
        if scope.start is None or scope.end is None:
            raise BadTask(f"{self.task.operator}: the task has no block range")
        return scope.start, scope.end

    def rpc_urls(self, pool: str) -> tuple[str, ...]:
        """The endpoints of a named RPC pool. Raises BadTask."""
        urls = self.settings.rpc_pools.get(pool)
        if not urls:
            raise BadTask(f"{self.task.operator}: no RPC pool is called {pool}")
        return urls

    def check(self) -> None:
        """Raises TaskCanceled when somebody asked the attempt to stop."""
        if self.canceled.is_set():
            raise TaskCanceled("the task was canceled")

    @property
    def emit(self) -> EmitEvents:
        """Events now, while the task runs. Raises BadTask where there is nobody to tell."""
        if self.link is None:
            raise BadTask(f"{self.task.operator}: this runner has no line to the Dispatcher")
        return self.link.emit
