"""Find the output columns of a DAG's jobs with Spark's analyser, without reading rows."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from trace_etl.api.task.checks import TaskCheck
from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.api.task.payload import TaskInput, TaskPayload
from trace_etl.dag.operators import FORWARDERS, OPERATORS
from trace_etl.model.dag import Dag, Job
from trace_etl.objects.file_store import FileStore
from trace_etl.policy.deploy.sql_checks import add_upstream_jobs
from trace_etl.spark.checks.rules import check_rule
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadSql, BadTask, OperatorError
from trace_etl.spark.io.appends import cast_to_stored
from trace_etl.spark.io.column_names import check_names, quote_name
from trace_etl.spark.io.inputs import Input, where_columns
from trace_etl.spark.io.writers import Frame
from trace_etl.spark.operators import find_operator, find_output_schemas
from trace_etl.spark.session.failures import translate_error
from trace_etl.spark.settings import SparkSettings
from trace_etl.spark.sql_guard.plan_tree import SqlParser

_NO_ID = UUID(int=0)
_POSITION = re.compile(r"\bline (\d+),? pos (\d+)")
Schemas = Mapping[str, StructType]


@dataclass(frozen=True)
class JobProblem:
    """An error in a job; `job` is its index in the DAG."""

    job: int
    message: str
    line: int | None = None
    """Line in the job's SQL, from 1; None if Spark reports no position."""
    column: int | None = None
    check: int | None = None
    """The index of the data check with the error."""


@dataclass
class Analysis:
    """Columns of the outputs, problems, and jobs whose input columns are unknown."""

    outputs: dict[tuple[str, str], StructType] = field(
        default_factory=dict[tuple[str, str], StructType]
    )
    problems: list[JobProblem] = field(default_factory=list[JobProblem])
    unknown: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class _EmptyContext(OperatorContext):
    """The context of a task whose inputs have columns but no rows."""

    empty: Sequence[Input] = ()

    @property
    def secrets(self) -> Mapping[str, str]:
        """Placeholders for the secrets: a check needs no values."""
        return dict.fromkeys(self.task.secrets, "checked")

    @property
    def inputs(self) -> list[Input]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return list(self.empty)

    def load(self, task_input: TaskInput) -> Input:
        return next(item for item in self.empty if item.name == task_input.name)


def analyse_dag(
    spark: SparkSession,
    dag: Dag,
    published: Schemas,
    only: Collection[str] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, count: None,
) -> Analysis:
    """Analyse each job after its upstream jobs. `spark` must be a session used only for this.

    `only` restricts the analysis to these jobs and their upstream jobs. `on_progress` is called with the
    number of jobs that are done, and of all.
    """
    analysis = Analysis()
    forwarders = {job.name for job in dag.jobs if job.operator in FORWARDERS}
    selected = {job.name for job in dag.jobs} if only is None else add_upstream_jobs(dag, only)
    waiting = [(n, job) for n, job in enumerate(dag.jobs) if job.name in selected - forwarders]
    count, done = len(waiting), 0
    while waiting:
        ready = [entry for entry in waiting if _is_ready(entry[1], waiting)]
        for n, job in ready or waiting:
            on_progress(done, count)
            _analyse_job(spark, n, job, published, forwarders, analysis)
            done += 1
        waiting = [entry for entry in waiting if entry not in (ready or waiting)]
    return analysis


def _is_ready(job: Job, waiting: list[tuple[int, Job]]) -> bool:
    names = {other.name for _, other in waiting}
    return not any(item.job in names for item in job.inputs)


def _analyse_job(
    spark: SparkSession,
    n: int,
    job: Job,
    published: Schemas,
    forwarders: set[str],
    analysis: Analysis,
) -> None:
    operator = OPERATORS.get(job.operator)
    if operator is not None and operator.needs_udf:
        return  # the code of a user decides; the sink checks its rows
    if operator is None or "spark" not in operator.launchers:
        analysis.unknown.append(job.name)
        return
    try:
        inputs = _make_inputs(spark, job, published, forwarders, analysis)
        if inputs is None:
            analysis.unknown.append(job.name)
            return
        for name, schema in _find_outputs(spark, job, inputs).items():
            check_names(name, schema, is_table=job.update_strategy == "append")
            analysis.outputs[job.name, name] = schema
        analysis.problems += _find_check_problems(spark, n, job, inputs, analysis)
    except OperatorError as error:
        analysis.problems.append(_locate_problem(n, job, error.detail))
    except (PySparkException, Py4JError) as error:
        detail = translate_error(error, is_alive=True).detail
        analysis.problems.append(_locate_problem(n, job, detail))


def _find_check_problems(
    spark: SparkSession, n: int, job: Job, inputs: list[Input], analysis: Analysis
) -> Iterator[JobProblem]:
    """Yield the data checks that cannot run on the columns of their outputs."""
    empty = {item.name: item.frame.schema for item in inputs}
    for i, check in enumerate(job.checks):
        schema = analysis.outputs.get((job.name, check.output))
        if schema is None:
            continue
        rule = check.rule
        referred = empty.get(rule.get("input", "")) or analysis.outputs.get(
            (job.name, rule.get("output", ""))
        )
        try:
            check_rule(
                SqlParser.of_session(spark),
                TaskCheck.model_validate(asdict(check)),
                spark.createDataFrame([], schema),
                referred,
            )
        except BadSql as error:
            yield JobProblem(n, error.detail, check=i)


def _locate_problem(n: int, job: Job, message: str) -> JobProblem:
    """Add the position in the SQL. Spark counts from after the leading white space."""
    position = _POSITION.search(message)
    sql = job.config.get("sql")
    if position is None or not isinstance(sql, str):
        return JobProblem(n, message)
    leading = sql[: len(sql) - len(sql.lstrip())]
    line, column = int(position[1]), int(position[2]) + 1
    if line == 1:
        column += len(leading) - (leading.rfind("\n") + 1)
    return JobProblem(n, message, line + leading.count("\n"), column)


def _make_inputs(
    spark: SparkSession, job: Job, published: Schemas, forwarders: set[str], analysis: Analysis
) -> list[Input] | None:
    """Empty inputs with the upstream columns; None if the columns of one are unknown."""
    inputs: list[Input] = []
    for item in job.inputs:
        if item.job in forwarders or not item.reads:
            continue
        key = (item.job or "", item.output or "")
        schema = analysis.outputs.get(key) if item.job else published.get(item.dataset or "")
        if schema is None:
            return None
        task_input = TaskInput(
            input_index=0,
            name=item.name,
            dataset_uuid=_NO_ID,
            dataset_version=_NO_ID,
            where=item.where,
        )
        where_columns(task_input, schema)
        if item.time is not None and item.time not in schema.names:
            raise BadTask(
                f"input {item.name}, time: there is no column {item.time}; name one of the input"
            )
        inputs.append(Input(item.name, spark.createDataFrame([], schema), is_small=True))
    return inputs


def _find_outputs(spark: SparkSession, job: Job, inputs: list[Input]) -> Schemas:
    config = OPERATORS[job.operator].config.model_validate(job.config)
    if find_schemas := find_output_schemas(job.operator):
        return find_schemas(job.outputs, inputs, config)
    context = _make_context(spark, job, inputs, config)
    result = find_operator(job.operator)(context, config)
    if isinstance(result, TaskResult):
        return {}
    if job.update_strategy == "append" and isinstance(result, Frame):
        stored = cast_to_stored(result.frame, context.task.outputs[0])
        return {result.output: stored.schema}
    return {name: from_arrow_schema(schema) for name, schema in result.schemas().items()}


def _make_context(
    spark: SparkSession, job: Job, inputs: list[Input], config: Any
) -> OperatorContext:
    # A range that every operator accepts, and an endpoint that is never called.
    size = getattr(config, "size", None) or 1
    payload = TaskPayload.model_validate(
        {
            "task_id": _NO_ID,
            "attempt": 1,
            "job": {"dag_name": "check", "name": job.name},
            "operator": job.operator,
            "config": dict(job.config),
            "scope": {"partition_key": f"0-{size - 1}", "start": 0, "end": size - 1},
            "secrets": list(job.secrets),
            "inputs": [
                {
                    "input_index": n,
                    "name": item.name,
                    "dataset_uuid": _NO_ID,
                    "dataset_version": _NO_ID,
                }
                for n, item in enumerate(inputs)
            ],
            "outputs": [
                {
                    "output_index": n,
                    "name": name,
                    "dataset_uuid": _NO_ID,
                    "dataset_version": _NO_ID,
                    "unique_key": list(job.unique_key),
                    "storage_ref": {"scheme": "file", "bucket": "check", "prefix": "check/"},
                }
                for n, name in enumerate(job.outputs)
            ],
        }
    )
    pools = {str(getattr(config, "rpc", "default")): ("http://127.0.0.1:9",)}
    settings = SparkSettings(FileStore(Path()), Path(), rpc_pools=pools)
    return _EmptyContext(payload, settings, lambda: spark, empty=inputs)


def struct_of_columns(columns: Sequence[Mapping[str, str]]) -> StructType:
    """The Spark schema of columns in the form that markers and deploys record."""
    ddl = ", ".join(f"{quote_name(column['name'])} {column['type']}" for column in columns)
    return cast("StructType", StructType.fromDDL(ddl))
