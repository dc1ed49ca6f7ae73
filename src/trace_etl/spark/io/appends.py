"""Outputs with `update_strategy: append`: upsert rows into a table of Postgres data."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType

from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.api.task.payload import TaskOutput
from trace_etl.dag.column_types import BY_SPARK, RESERVED, appended_form, buffered_form
from trace_etl.data import appends, connection
from trace_etl.data.errors import ColumnsChanged, KeyMissing, ValueRefused
from trace_etl.model.storage import hot_table
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadSql, BadTask, report_errors
from trace_etl.spark.io import reports
from trace_etl.spark.io.column_names import map_batches, quote_name
from trace_etl.spark.io.writers import Frame
from trace_etl.spark.session.executors import freeze_imports

_REPORT: Any = pa.schema([("rows", pa.int64())])
_REPORT_TYPE = from_arrow_schema(_REPORT)


def write(context: OperatorContext, result: Frame) -> TaskResult:
    """Stage the rows on executors, then upsert them in one transaction. Raises BadSql, BadTask."""
    [output] = context.task.outputs
    dsn = context.settings.data_dsn
    if dsn is None:
        raise BadTask(f"output {output.name}: append needs Postgres data; set TRACE_DATA_DSN")
    frame = cast_to_stored(result.frame, output)
    target = _make_target(context, output, frame)
    try:
        with connection.connect(dsn) as conn, connection.transaction(conn):
            target = appends.create_staging(conn, target)
    except ColumnsChanged as error:
        raise BadSql(f"output {output.name}: {error}") from error
    try:
        staged = map_batches(frame.coalesce(1), _Stager(dsn, target), _REPORT_TYPE)
        cast("Any", staged).collect()
        context.check()
        with connection.connect(dsn) as conn, connection.transaction(conn):
            rows = appends.merge_rows(conn, target)
    except BaseException:
        with connection.connect(dsn) as conn:
            appends.drop_staging(conn, target)
        raise
    return reports.report_appended(context.task, output, f"postgres_table:{target.table}", rows)


def cast_to_stored(frame: DataFrame, output: TaskOutput, *, is_buffered: bool = False) -> DataFrame:
    """Cast the columns to types that the table can store. Raises BadSql naming the first other one.

    With `is_buffered`, only types that JSON represents without loss are allowed.
    """
    missing = [name for name in output.unique_key if name not in frame.columns]
    if missing:
        raise BadSql(
            f"output {output.name}: the result has no column {missing[0]}, which the unique_key names; select it"
        )
    for name in set(RESERVED) & set(frame.columns):  # readers would treat the table as buffered
        raise BadSql(f"output {output.name}: the column name {name} is reserved; rename the column")
    cast_column = _cast_buffered if is_buffered else _cast_appended
    columns = [cast_column(field.name, field.dataType) for field in frame.schema.fields]
    return frame.select(*columns)


def _cast_appended(name: str, kind: DataType) -> Column:
    item = kind.elementType if isinstance(kind, ArrayType) else kind
    form = appended_form(item.typeName())
    if form is None:
        raise BadSql(
            f"column {name} is {kind.simpleString()}; append stores numbers, booleans, strings, "
            "binary, dates, timestamps and arrays of these: CAST it, or convert it with to_json"
        )
    if form is BY_SPARK[item.typeName()]:
        return F.col(quote_name(name))
    stored_type = form.spark if item is kind else f"array<{form.spark}>"
    return F.col(quote_name(name)).cast(stored_type).alias(name)


def _cast_buffered(name: str, kind: DataType) -> Column:
    form = buffered_form(kind.simpleString())
    if form is None:
        raise BadSql(
            f"column {name} is {kind.simpleString()}; a buffered dataset stores numbers, booleans, "
            "strings, binary, dates, timestamps and arrays of these: CAST it"
        )
    return F.col(quote_name(name)).cast(form.spark).alias(name)


def _make_target(
    context: OperatorContext, output: TaskOutput, frame: DataFrame
) -> appends.AppendTarget:
    return appends.AppendTarget(
        table=hot_table(output.dataset_uuid, output.dataset_version),
        schema=to_arrow_schema(frame.schema, timezone="UTC"),
        key=tuple(output.unique_key),
        dataset_version=output.dataset_version,
        task_id=context.task.task_id,
        attempt=context.task.attempt,
    )


@dataclass(frozen=True)
class _Stager:
    """Runs on an executor: copies one partition of rows to the staging table."""

    dsn: str
    target: appends.AppendTarget

    @report_errors
    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        try:
            rows = appends.stage_rows(self.dsn, self.target, batches)
        except KeyMissing as error:
            raise BadSql(f"{error}, which is part of the unique_key; give it one") from error
        except ValueRefused as error:
            raise BadSql(str(error)) from error
        freeze_imports()
        yield pa.RecordBatch.from_arrays([pa.array([rows])], schema=_REPORT)
