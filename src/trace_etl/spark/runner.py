"""Run a task on the warm session: load inputs, call the operator, write files, build the result."""

import itertools
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from uuid import UUID

from py4j.protocol import Py4JError
from pydantic import ValidationError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.api.task.payload import Scope, TaskPayload
from trace_etl.dag.operators import OPERATORS, OperatorConfig
from trace_etl.objects.s3_store import S3Store
from trace_etl.spark.checks.run import check_files, checked_rows
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.dispatcher_link import DispatcherLink, ignore_output
from trace_etl.spark.errors import BadTask, NothingCommitted, SparkLost, TaskCanceled
from trace_etl.spark.io import appends, batches, reports
from trace_etl.spark.io.column_names import check_names
from trace_etl.spark.io.time_keys import map_partitions
from trace_etl.spark.io.writers import Frame, OutputFile, mark_success
from trace_etl.spark.operators import RunOperator, find_operator
from trace_etl.spark.output import capture
from trace_etl.spark.session.engine import JobLabels
from trace_etl.spark.session.failures import translate_error
from trace_etl.spark.session.warm_session import WarmSession
from trace_etl.spark.session.warmup import warm_up
from trace_etl.spark.settings import SparkSettings

# Raised when Spark is lost, but also for errors of the task itself.
_SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError, EOFError)
_CANCEL_INTERVAL_SECONDS = 0.1


@dataclass(eq=False)
class _Run:
    """A running task: the labels of its Spark jobs, and its cancellation."""

    task_id: UUID
    attempt: int
    jobs: JobLabels
    spark: SparkSession | None = None
    session: SparkSession | None = None
    """The session reserved for the task, of the same application as `spark`."""
    canceled: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def matches(self, task_id: UUID, attempt: int | None) -> bool:
        return self.task_id == task_id and attempt in (None, self.attempt)

    def check(self) -> None:
        if self.canceled.is_set():
            raise TaskCanceled("the task was canceled")


@dataclass
class SparkRunner:
    """Runs tasks. One per worker process; `run` may be called from several threads."""

    settings: SparkSettings
    _runs: list[_Run] = field(default_factory=list[_Run], init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _numbers: Iterator[int] = field(default_factory=itertools.count, init=False)

    def __post_init__(self) -> None:
        self.session = WarmSession(self.settings)

    def warm(self) -> None:
        """Start Spark and warm it up for the first tasks. Raises SparkNotStarted."""
        warm_up(self.session.get(), self.settings)

    def run(self, task: TaskPayload, link: DispatcherLink | None = None) -> TaskResult:
        """Run the task and return what it produced. Raises OperatorError."""
        operate = find_operator(task.operator)
        config = _check_config(task)
        log = link.log if link else ignore_output
        with self._register_run(task, log) as run, capture(log):
            try:
                # Sessions are returned inside the `try`, because a dead JVM may show only then.
                with ExitStack() as leases:
                    context = self._make_context(task, run, leases, link)
                    return self._run_operator(operate, context, config)
            except _SPARK_ERRORS as error:
                run.check()  # the error of a canceled task says nothing about Spark
                failure = translate_error(error, is_alive=self.session.is_alive)
                if isinstance(failure, SparkLost) and run.spark is not None:
                    self.session.abandon(run.spark)
                raise failure from error

    def cancel(self, task_id: UUID, attempt: int | None = None) -> None:
        """Cancel a running task, or one attempt of it. Its `run` raises TaskCanceled."""
        with self._lock:
            runs = [run for run in self._runs if run.matches(task_id, attempt)]
        for run in runs:
            run.canceled.set()
            threading.Thread(
                target=self._cancel_jobs, args=[run], name="cancel", daemon=True
            ).start()

    def close(self) -> None:
        """Stop Spark and its JVM."""
        self.session.close()

    def _cancel_jobs(self, run: _Run) -> None:
        """Cancel the run's jobs repeatedly until it ends, because Spark cancels only current jobs."""
        while True:
            if run.session is not None:
                with suppress(*_SPARK_ERRORS):  # `run` reports them
                    self.session.cancel_jobs(run.session, run.jobs.tag)
            if run.over.wait(_CANCEL_INTERVAL_SECONDS):
                return

    def _make_context(
        self, task: TaskPayload, run: _Run, leases: ExitStack, link: DispatcherLink | None
    ) -> OperatorContext:
        def lease() -> SparkSession:
            run.spark = spark = self.session.get()
            run.check()
            views = [task_input.name for task_input in task.inputs]
            run.session = leases.enter_context(self.session.lease(spark, views, run.jobs))
            return run.session

        open_parser = self.session.engine.open_parser
        settings = self._choose_settings(link)
        return OperatorContext(task, settings, lease, run.canceled, link, open_parser)

    def _choose_settings(self, link: DispatcherLink | None) -> SparkSettings:
        """Return the settings, with the credentials of the task if it has its own."""
        objects, file = self.settings.objects, link.credentials_file if link else None
        if file is None or not isinstance(objects, S3Store):
            return self.settings
        return replace(self.settings, objects=objects.use_credentials(file))

    def _run_operator(
        self, operate: RunOperator, context: OperatorContext, config: OperatorConfig
    ) -> TaskResult:
        if _is_already_read(context.task.scope):
            return TaskResult()
        if context.task.partition_by is not None and not context.task.is_refresh:
            return map_partitions(context.task, context.settings.objects)
        targets = _make_targets(context)
        try:
            result = operate(context, config)
        except NothingCommitted:
            if not _can_skip(context.task):
                raise
            return TaskResult()
        if isinstance(result, TaskResult):
            return result
        is_table = any(output.update_strategy == "append" for output in context.task.outputs)
        for name, schema in result.schemas().items():
            check_names(name, from_arrow_schema(schema), is_table=is_table)
        if is_table:
            assert isinstance(result, Frame)  # operators with `append` return nothing else
            is_buffered = context.task.outputs[0].columns is not None
            write = batches.write if is_buffered else appends.write
            with checked_rows(context, result) as (rows, checks):
                return write(context, rows).model_copy(update={"checks": checks})
        written = result.write(targets)
        context.check()
        checks = check_files(context, result.schemas(), targets, written.files)
        verified = written.join_verified()
        made_from = result.made_from if isinstance(result, Frame) else None
        for name, schema in result.schemas().items():
            mark_success(targets[name], written.files[name], schema, verified, made_from)
        invalidations = result.invalidations if isinstance(result, Frame) else ()
        reported = reports.report_files(context.task, written.files, invalidations)
        return reported.model_copy(update={"checks": checks})

    @contextmanager
    def _register_run(self, task: TaskPayload, log: Callable[[bytes], None]) -> Generator[_Run]:
        with self._lock:
            used = {run.jobs.pool for run in self._runs}
            pool = next(
                name for name in map("slot-{}".format, itertools.count()) if name not in used
            )
            tag = f"{task.task_id}-{task.attempt}-{next(self._numbers)}"
            jobs = JobLabels(tag, f"{task.job.dag_name}.{task.job.name}", pool, log)
            run = _Run(task.task_id, task.attempt, jobs)
            self._runs.append(run)
        try:
            yield run
        finally:
            run.over.set()
            with self._lock:
                self._runs.remove(run)


def _make_targets(context: OperatorContext) -> dict[str, OutputFile]:
    return {
        output.name: OutputFile(
            context.settings.objects,
            output.storage_ref,
            reports.file_name(output.name, context.task.scope),
        )
        for output in context.task.outputs
    }


def _can_skip(task: TaskPayload) -> bool:
    """Whether a task may end without rows while an input is empty: a later one will read the input."""
    is_tick = task.parameters is not None and task.parameters.scheduled_time is not None
    return is_tick or task.is_refresh


def _is_already_read(scope: Scope | None) -> bool:
    """Whether a later cursor, which arrived first, has already read this scope."""
    if scope is None or scope.cursor is None or scope.after is None:
        return False
    return scope.after >= scope.cursor


def _check_config(task: TaskPayload) -> OperatorConfig:
    """Check the payload against the operator's declaration. Raises BadTask naming the field."""
    operator = OPERATORS[task.operator]
    outputs = tuple(output.name for output in task.outputs)
    inputs = tuple(item.name for item in task.inputs)
    if wrong := operator.check_outputs(outputs):
        raise BadTask(f"operator {task.operator}, outputs: {wrong}")
    if wrong := operator.check_inputs(inputs):
        raise BadTask(f"operator {task.operator}, inputs: {wrong}")
    for output in task.outputs:
        if output.update_strategy not in operator.update_strategies:
            allowed = ", ".join(operator.update_strategies)
            raise BadTask(
                f"operator {task.operator}, output {output.name}: update_strategy "
                f"{output.update_strategy} is not supported; use one of {allowed}"
            )
    try:
        config = operator.config.model_validate(task.config)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadTask(f"operator {task.operator}, config.{where}: {first['msg']}") from error
    if wrong := config.check_job(inputs, outputs):
        raise BadTask(f"operator {task.operator}, config: {wrong}")
    return config
