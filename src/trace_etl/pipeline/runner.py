"""Runs one task on the warm session: inputs in, operator, files out, and what to report."""

import itertools
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast
from uuid import UUID

from py4j.protocol import Py4JError
from pydantic import ValidationError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from trace_etl.pipeline import inputs, reports
from trace_etl.pipeline.errors import BadTask, SparkLost, TaskCanceled
from trace_etl.pipeline.failures import translated
from trace_etl.pipeline.operators import cryo_ingest, range_splitter, sql
from trace_etl.pipeline.session import WarmSession
from trace_etl.pipeline.settings import PipelineSettings
from trace_etl.pipeline.storage import directory
from trace_etl.pipeline.warmup import warm_up
from trace_etl.pipeline.writer import Result, Target, mark_success
from trace_etl.plan.operators import OPERATORS, IngestConfig, OperatorConfig, SplitConfig, SqlConfig
from trace_etl.wire.task import TaskPayload, TaskResult


@dataclass(eq=False)
class _Run:
    """A task under way: the Spark job group its jobs carry, and whether to stop."""

    task_id: UUID
    attempt: int
    group: str
    pool: str
    is_canceled: bool = False

    def is_of(self, task_id: UUID, attempt: int | None) -> bool:
        return self.task_id == task_id and attempt in (None, self.attempt)

    def check(self) -> None:
        if self.is_canceled:
            raise TaskCanceled("the task was canceled")


@dataclass
class SparkRunner:
    """One per worker process; `run` may be called from several threads at once."""

    settings: PipelineSettings
    _runs: list[_Run] = field(default_factory=list[_Run], init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _numbers: Iterator[int] = field(default_factory=itertools.count, init=False)

    def __post_init__(self) -> None:
        self.session = WarmSession(self.settings)

    def warm(self) -> None:
        """Start Spark and run what the first tasks would wait for. Raises SparkNotStarted."""
        warm_up(self.session.get(), self.settings)

    def run(self, task: TaskPayload) -> TaskResult:
        """Do the task's work and tell what was made. Raises PipelineError."""
        config = _checked_config(task)
        if isinstance(config, SplitConfig):
            return range_splitter.run(task, config)
        with self._registered(task) as run:
            spark = self.session.get()
            run.check()
            try:
                return self._run_on_spark(spark, task, config, run)
            except (PySparkException, Py4JError, ConnectionError, EOFError) as error:
                failure = translated(error, is_alive=self.session.is_alive)
                if isinstance(failure, SparkLost):
                    self.session.abandon(spark)
                run.check()
                raise failure from error

    def cancel(self, task_id: UUID, attempt: int | None = None) -> None:
        """Stop a task that runs here, or one attempt of it; its `run` raises TaskCanceled."""
        with self._lock:
            runs = [run for run in self._runs if run.is_of(task_id, attempt)]
        for run in runs:
            run.is_canceled = True
            self.session.cancel_jobs(run.group)

    def close(self) -> None:
        """Stop Spark and its JVM."""
        self.session.close()

    def _run_on_spark(
        self, spark: SparkSession, task: TaskPayload, config: OperatorConfig, run: _Run
    ) -> TaskResult:
        targets = self._targets(task)
        views = [given.name for given in task.inputs]
        with _jobs_named(spark, task, run), self.session.lease(spark, views) as own:
            result = self._operate(own, task, config)
            written = result.write(targets)
        run.check()
        for name, schema in result.schemas().items():
            mark_success(targets[name], written[name], schema)
        return reports.result(task, written)

    def _operate(self, spark: SparkSession, task: TaskPayload, config: OperatorConfig) -> Result:
        names = [output.name for output in task.outputs]
        if isinstance(config, IngestConfig):
            return cryo_ingest.read(spark, config, task.scope, names, self.settings.rpc_pools)
        assert isinstance(config, SqlConfig)
        root = self.settings.objects_root
        frames = [inputs.load(spark, given, task.scope, root) for given in task.inputs]
        return sql.select(spark, config.sql, frames, names[0])

    def _targets(self, task: TaskPayload) -> dict[str, Target]:
        root = self.settings.objects_root
        return {
            output.name: Target(
                directory(output.storage_ref, root), reports.file_name(output.name, task.scope)
            )
            for output in task.outputs
        }

    @contextmanager
    def _registered(self, task: TaskPayload) -> Generator[_Run]:
        with self._lock:
            used = {run.pool for run in self._runs}
            pool = next(
                name for name in map("slot-{}".format, itertools.count()) if name not in used
            )
            group = f"{task.task_id}-{task.attempt}-{next(self._numbers)}"
            run = _Run(task.task_id, task.attempt, group, pool)
            self._runs.append(run)
        try:
            yield run
        finally:
            with self._lock:
                self._runs.remove(run)


def _checked_config(task: TaskPayload) -> OperatorConfig:
    """The operator's config. Raises BadTask naming the field."""
    operator = OPERATORS.get(task.operator)
    if operator is None or operator.config not in (SplitConfig, IngestConfig, SqlConfig):
        raise BadTask(f"operator {task.operator}: this worker does not run it")
    wrong = operator.check_outputs(tuple(output.name for output in task.outputs))
    if wrong:
        raise BadTask(f"operator {task.operator}, outputs: {wrong}")
    for output in task.outputs:
        if output.update_strategy != "replace":
            raise BadTask(f"output {output.name}: update_strategy {output.update_strategy}")
    try:
        return operator.config.model_validate(task.config)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadTask(f"operator {task.operator}, config.{where}: {first['msg']}") from error


@contextmanager
def _jobs_named(spark: SparkSession, task: TaskPayload, run: _Run) -> Generator[None]:
    """Jobs of this thread belong to the task: they can be cancelled and share cores fairly."""
    context = spark.sparkContext
    context.setJobGroup(run.group, f"{task.job.dag_name}.{task.job.name}", interruptOnCancel=True)
    context.setLocalProperty("spark.scheduler.pool", run.pool)
    try:
        yield
    finally:
        context.setLocalProperty("spark.jobGroup.id", cast("str", None))
