"""The context of one attempt, passed to its operator."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.sql import SparkSession

from trace_etl.api.task.payload import Scope, TaskInput, TaskPayload
from trace_etl.dag.chain.rules import VerifyRules
from trace_etl.dag.operator_configs import ChainConfig
from trace_etl.secret_store import expand_url
from trace_etl.spark.dispatcher_link import DispatcherLink, EmitEvents
from trace_etl.spark.errors import BadTask, TaskCanceled
from trace_etl.spark.io import hot_tables, inputs
from trace_etl.spark.io.inputs import Input
from trace_etl.spark.settings import SparkSettings
from trace_etl.spark.sql_guard.plan_tree import SqlParser


@dataclass(frozen=True)
class OperatorContext:
    """The task, settings, session and inputs of one attempt. Spark starts on first use."""

    task: TaskPayload
    settings: SparkSettings
    lease: Callable[[], SparkSession]
    """Reserves a session of the warm application for this task, until the attempt ends."""
    canceled: threading.Event = field(default_factory=threading.Event)
    """Set when the attempt must stop. An operator that waits must wait on this event."""
    link: DispatcherLink | None = None
    open_parser: Callable[[SparkSession], SqlParser] = SqlParser.of_session

    @cached_property
    def spark(self) -> SparkSession:
        """The session reserved for this task. Raises SparkNotStarted."""
        return self.lease()

    @cached_property
    def inputs(self) -> list[Input]:
        """All inputs, limited to the scope and filtered. Raises InputMissing or BadTask."""
        return [self.load(task_input) for task_input in self.task.inputs]

    def load(self, task_input: TaskInput) -> Input:
        """Load one input only. Raises InputMissing or BadTask."""
        scope, settings = self.task.scope, self.settings
        if task_input.partitions:
            return inputs.load(
                self.spark, task_input, scope, settings.objects, self.task.time_range
            )
        return hot_tables.load(self.spark, task_input, scope, settings.data_dsn)

    def input(self, name: str) -> Input:
        """Return the input with this name. Raises BadTask."""
        match = next((item for item in self.inputs if item.name == name), None)
        if match is None:
            names = ", ".join(item.name for item in self.task.inputs) or "none"
            raise BadTask(
                f"{self.task.operator}: unknown input {name}; the job's inputs are: {names}"
            )
        return match

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs, in the order of the job."""
        return [output.name for output in self.task.outputs]

    def block_range(self) -> tuple[int, int]:
        """The task's first and last block, inclusive. Raises BadTask if its scope has none."""
        scope = self.task.scope or Scope()
        if scope.start is None or scope.end is None:
            raise BadTask(
                f"{self.task.operator}: the task's scope has no block range; "
                "connect the job to an upstream that emits ranges"
            )
        return scope.start, scope.end

    def rpc_urls(self, pool: str) -> tuple[str, ...]:
        """The URLs of an RPC pool, with the secrets that they refer to. Raises BadTask, SecretMissing."""
        urls = self.settings.rpc_pools.get(pool)
        if not urls:
            names = ", ".join(self.settings.rpc_pools) or "none"
            raise BadTask(
                f"{self.task.operator}: unknown RPC pool {pool} in config.rpc; "
                f"this worker's pools are: {names}"
            )
        return tuple(expand_url(url, self.secrets) for url in urls)

    @property
    def secrets(self) -> Mapping[str, str]:
        """The secrets that the job names, by name."""
        return self.link.secrets if self.link else {}

    def verify_rules(self, config: ChainConfig) -> VerifyRules:
        """What to verify of the blocks that a job reads."""
        pool = self.settings.rpc_rules.get(config.rpc, VerifyRules())
        return VerifyRules(
            config.verify or pool.level,
            tuple(dict.fromkeys((*pool.exceptions, *config.exceptions))),
            config.verify_senders,
        )

    def log(self, text: str) -> None:
        """Add a text to the output of the attempt, which `trace logs` prints."""
        if self.link is not None:
            self.link.log(text.encode())

    def check(self) -> None:
        """Raise TaskCanceled if the attempt must stop."""
        if self.canceled.is_set():
            raise TaskCanceled("the task was canceled")

    @property
    def emit(self) -> EmitEvents:
        """Send events while the task runs. Raises BadTask without a Dispatcher connection."""
        if self.link is None:
            raise BadTask(
                f"{self.task.operator}: this runner has no connection to the Dispatcher; "
                "run the task on a worker"
            )
        return self.link.emit
