"""What a DAG's jobs would make of their inputs, found out by Spark's own analyser, without rows."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.api.task.payload import TaskInput, TaskPayload
from trace_etl.dag.operators import OPERATORS
from trace_etl.model.dag import Dag, Job
from trace_etl.policy.sql_checks import with_upstream
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import OperatorError
from trace_etl.spark.evm.tables import SCHEMAS
from trace_etl.spark.io.appends import storable
from trace_etl.spark.io.inputs import Input, where_columns
from trace_etl.spark.io.writers import Frame
from trace_etl.spark.operators import find_operator
from trace_etl.spark.session.failures import translate_error
from trace_etl.spark.settings import SparkSettings

_RELAYS = ("source", "range_splitter", "range_aggregator")
_NOBODY = UUID(int=0)
_PLACE = re.compile(r"\bline (\d+),? pos (\d+)")
_FINDINGS = "block_number bigint, problem string, expected_rows bigint, found_rows bigint"
Schemas = Mapping[str, StructType]


@dataclass(frozen=True)
class JobProblem:
    """What is wrong with a job, by its place in the DAG."""

    job: int
    message: str
    line: int | None = None
    """In the job's SQL, from 1, where Spark tells it."""
    column: int | None = None


@dataclass
class Analysis:
    """What was found: the columns of outputs, complaints, and jobs that could not be looked at."""

    outputs: dict[tuple[str, str], StructType] = field(
        default_factory=dict[tuple[str, str], StructType]
    )
    complaints: list[JobProblem] = field(default_factory=list[JobProblem])
    unknown: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class _EmptyContext(OperatorContext):
    """A task whose inputs have columns and no rows."""

    empty: Sequence[Input] = ()

    @property
    def inputs(self) -> list[Input]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return list(self.empty)

    def load(self, given: TaskInput) -> Input:
        return next(one for one in self.empty if one.name == given.name)


def analyse_dag(
    spark: SparkSession, dag: Dag, published: Schemas, only: Collection[str] | None = None
) -> Analysis:
    """Look at every job after those it reads from. `spark` is a session of its own for this.

    `only`: these jobs, and what they read from.
    """
    found = Analysis()
    relays = {job.name for job in dag.jobs if job.operator in _RELAYS}
    wanted = {job.name for job in dag.jobs} if only is None else with_upstream(dag, only)
    waiting = [(n, job) for n, job in enumerate(dag.jobs) if job.name in wanted - relays]
    while waiting:
        ready = [one for one in waiting if _is_ready(one[1], waiting)]
        for n, job in ready or waiting:
            _look(spark, n, job, published, relays, found)
        waiting = [one for one in waiting if one not in (ready or waiting)]
    return found


def _is_ready(job: Job, waiting: list[tuple[int, Job]]) -> bool:
    undone = {other.name for _, other in waiting}
    return not any(item.job in undone for item in job.inputs)


def _look(
    spark: SparkSession, n: int, job: Job, published: Schemas, relays: set[str], found: Analysis
) -> None:
    if job.operator not in OPERATORS or not OPERATORS[job.operator].is_for_workers:
        found.unknown.append(job.name)
        return
    try:
        inputs = _inputs(spark, job, published, relays, found)
        if inputs is None:
            found.unknown.append(job.name)
            return
        for name, schema in _outputs(spark, job, inputs).items():
            found.outputs[job.name, name] = schema
    except OperatorError as error:
        found.complaints.append(_complaint(n, job, error.detail))
    except (PySparkException, Py4JError) as error:
        found.complaints.append(_complaint(n, job, translate_error(error, is_alive=True).detail))


def _complaint(n: int, job: Job, message: str) -> JobProblem:
    """What Spark says, and where in the SQL; it counts lines behind the white space before it."""
    place = _PLACE.search(message)
    sql = job.config.get("sql")
    if place is None or not isinstance(sql, str):
        return JobProblem(n, message)
    above = sql[: len(sql) - len(sql.lstrip())]
    line, column = int(place[1]), int(place[2]) + 1
    if line == 1:
        column += len(above) - (above.rfind("\n") + 1)
    return JobProblem(n, message, line + above.count("\n"), column)


def _inputs(
    spark: SparkSession, job: Job, published: Schemas, relays: set[str], found: Analysis
) -> list[Input] | None:
    """The inputs that have rows; None when the columns of one are not known."""
    inputs: list[Input] = []
    for item in job.inputs:
        if item.job in relays:
            continue
        key = (item.job or "", item.output or "")
        schema = found.outputs.get(key) if item.job else published.get(item.dataset or "")
        if schema is None:
            return None
        given = TaskInput(
            input_index=0,
            name=item.name,
            dataset_uuid=_NOBODY,
            dataset_version=_NOBODY,
            where=item.where,
        )
        where_columns(given, schema)
        inputs.append(Input(item.name, spark.createDataFrame([], schema), is_small=True))
    return inputs


def _outputs(spark: SparkSession, job: Job, inputs: list[Input]) -> Schemas:
    if job.operator == "block_follower":
        return {name: _columns(SCHEMAS[name.removeprefix("hot_")]) for name in job.outputs}
    if job.operator == "integrity_check":
        return dict.fromkeys(job.outputs, cast("StructType", StructType.fromDDL(_FINDINGS)))
    if job.operator == "parquet_compact":
        return {job.outputs[0]: inputs[-1].frame.schema}
    config = OPERATORS[job.operator].config.model_validate(job.config)
    context = _context(spark, job, inputs, config)
    result = find_operator(job.operator)(context, config)
    if isinstance(result, TaskResult):
        return {}
    if job.update_strategy == "append" and isinstance(result, Frame):
        stored = storable(result.frame, context.task.outputs[0])
        return {result.output: stored.schema}
    return {name: _columns(schema) for name, schema in result.schemas().items()}


def _context(spark: SparkSession, job: Job, inputs: list[Input], config: Any) -> OperatorContext:
    # A range that every operator takes for one of its own, and endpoints that nobody calls.
    size = getattr(config, "size", None) or 1
    payload = TaskPayload.model_validate(
        {
            "task_id": _NOBODY,
            "attempt": 1,
            "job": {"dag_name": "check", "name": job.name},
            "operator": job.operator,
            "config": dict(job.config),
            "scope": {"partition_key": f"0-{size - 1}", "start": 0, "end": size - 1},
            "inputs": [
                {
                    "input_index": n,
                    "name": given.name,
                    "dataset_uuid": _NOBODY,
                    "dataset_version": _NOBODY,
                }
                for n, given in enumerate(inputs)
            ],
            "outputs": [
                {
                    "output_index": n,
                    "name": name,
                    "dataset_uuid": _NOBODY,
                    "dataset_version": _NOBODY,
                    "unique_key": list(job.unique_key),
                    "storage_ref": {"scheme": "file", "bucket": "check", "prefix": "check/"},
                }
                for n, name in enumerate(job.outputs)
            ],
        }
    )
    pools = {str(getattr(config, "rpc", "default")): ("http://127.0.0.1:9",)}
    settings = SparkSettings(Path(), Path(), rpc_pools=pools)
    return _EmptyContext(payload, settings, lambda: spark, empty=inputs)


def struct_of_columns(columns: Sequence[Mapping[str, str]]) -> StructType:
    """Columns as markers and deploys record them."""
    ddl = ", ".join(f"`{one['name']}` {one['type']}" for one in columns)
    return cast("StructType", StructType.fromDDL(ddl))


def _columns(schema: Any) -> StructType:
    return from_arrow_schema(schema)
