"""Run a user's SELECT. The inputs are views with the names that the job gives them."""

import json

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    AnsiIntervalType,
    ArrayType,
    CalendarIntervalType,
    DataType,
    MapType,
    NullType,
    StructType,
    VariantType,
)

from trace_etl.api.task.payload import TaskParameters, TaskPayload
from trace_etl.dag.operators import SqlConfig
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadSql
from trace_etl.spark.io.writers import Frame
from trace_etl.spark.session.failures import first_line, is_spark_lost
from trace_etl.spark.sql_guard.query import SqlParameter, check_query

_NOT_STORED = (NullType, AnsiIntervalType, CalendarIntervalType, VariantType)


def run(context: OperatorContext, config: SqlConfig) -> Frame:
    """Return the rows of the SELECT as the only output. Raises BadSql."""
    return run_select(context, config.sql)


def run_select(context: OperatorContext, text: str) -> Frame:
    """Return the result of the SELECT. Raises BadSql."""
    spark, inputs = context.spark, context.inputs
    names = [item.name for item in inputs]
    query = check_query(context.open_parser(spark), text, names, _list_parameters(context.task))
    for item in inputs:
        item.frame.createOrReplaceTempView(item.name)
    try:
        frame = query.frame(spark)
        _check_columns(frame.schema)
    except PySparkException as error:
        if is_spark_lost(error):
            raise
        raise BadSql(f"{first_line(error)} (inputs: {', '.join(names) or 'none'})") from error
    return Frame(
        context.outputs[0],
        frame,
        is_ordered=query.is_ordered,
        is_large=not all(item.is_small for item in inputs),
    )


def _list_parameters(task: TaskPayload) -> dict[str, SqlParameter]:
    """The values that SQL reads as `:name`. They are null in a task that no such event started."""
    values = task.parameters or TaskParameters()
    payload = None if values.payload is None else json.dumps(values.payload)
    return {
        "scheduled_time": SqlParameter("timestamp", values.scheduled_time),
        "payload": SqlParameter("string", payload),
        "partition_key": SqlParameter("string", task.scope.output_key if task.scope else None),
    }


def _check_columns(schema: StructType) -> None:
    """Raise BadSql for a column name that repeats or a type that Parquet cannot store."""
    seen: set[str] = set()
    for field in schema.fields:
        if field.name.lower() in seen:
            raise BadSql(f"two columns are called {field.name}; give one of them an alias")
        seen.add(field.name.lower())
        if not _is_storable(field.dataType):
            raise BadSql(
                f"column {field.name} has type {field.dataType.simpleString()}, which Parquet "
                "cannot store; CAST it to another type"
            )


def _is_storable(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return bool(kind.fields) and all(_is_storable(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _is_storable(kind.elementType)
    if isinstance(kind, MapType):
        return _is_storable(kind.keyType) and _is_storable(kind.valueType)
    return not isinstance(kind, _NOT_STORED)
