"""Run a user's SELECT. The inputs are views with the names that the job gives them."""

import json
from collections.abc import Sequence
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
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
from trace_etl.spark import increments
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadSql
from trace_etl.spark.io import inputs as inputs_io
from trace_etl.spark.io.inputs import Input
from trace_etl.spark.io.writers import Frame
from trace_etl.spark.logical_plans import find_needed_columns
from trace_etl.spark.session.failures import first_line, is_spark_lost
from trace_etl.spark.sql_guard.named_columns import find_named_columns
from trace_etl.spark.sql_guard.query import CheckedQuery, SqlParameter, check_query

_NOT_STORED = (NullType, AnsiIntervalType, CalendarIntervalType, VariantType)


def run(context: OperatorContext, config: SqlConfig) -> Frame:
    """Return the rows of the SELECT as the only output. Raises BadSql."""
    query = _check_text(context, config.sql)
    if increments.can_add(context.task) and not query.parameters:
        return _run_whole(context, query)
    return _run_over(context, query, context.inputs)


def run_select(context: OperatorContext, text: str) -> Frame:
    """Return the result of the SELECT. Raises BadSql."""
    return _run_over(context, _check_text(context, text), context.inputs)


def _check_text(context: OperatorContext, text: str) -> CheckedQuery:
    names = [item.name for item in context.task.inputs]
    parser = context.open_parser(context.spark)
    return check_query(parser, text, names, _list_parameters(context.task))


def _run_over(context: OperatorContext, query: CheckedQuery, inputs: Sequence[Input]) -> Frame:
    for item in inputs:
        item.frame.createOrReplaceTempView(item.name)
    try:
        frame = _skip_columns(context, query, inputs)
        _check_columns(frame.schema)
    except PySparkException as error:
        if is_spark_lost(error):
            raise
        names = ", ".join(item.name for item in inputs)
        raise BadSql(f"{first_line(error)} (inputs: {names or 'none'})") from error
    return Frame(
        context.outputs[0],
        frame,
        is_ordered=query.is_ordered,
        is_large=not all(item.is_small for item in inputs),
    )


def _skip_columns(
    context: OperatorContext, query: CheckedQuery, inputs: Sequence[Input]
) -> DataFrame:
    """Return the rows of a query. Python workers read only the columns of large inputs that it needs."""
    frame = query.frame(context.spark)
    if all(item.is_small or item.select is None for item in inputs):
        return frame
    needed, named = find_needed_columns(frame), find_named_columns(query.tree)
    has_changed = False
    for item in inputs:
        every = frozenset(item.frame.columns)
        columns = needed.get(item.source, _choose_named(every, named))
        if item.is_small or item.select is None:
            continue
        if columns < every:
            item.select(columns).createOrReplaceTempView(item.name)
            has_changed = True
    return query.frame(context.spark) if has_changed else frame


def _choose_named(columns: frozenset[str], named: frozenset[str] | None) -> frozenset[str]:
    return columns if named is None else frozenset(c for c in columns if c.lower() in named)


def _run_whole(context: OperatorContext, query: CheckedQuery) -> Frame:
    """Return the result over all partitions of the only input. Reads only new ones if that gives the same."""
    task, store = context.task, context.settings.objects
    [task_input] = task.inputs
    digests = increments.list_digests(task_input)
    made_from = inputs_io.read_made_from(task.previous, store) if task.previous else None
    if made_from is None or not set(made_from) <= digests.keys():
        frame = _run_over(context, query, context.inputs)
        can_be_added_to = increments.find_merge(frame.frame) is not None
        return replace(frame, made_from=list(digests) if can_be_added_to else None)
    assert task.previous is not None
    added = [part for digest, part in digests.items() if digest not in set(made_from)]
    # If no partition is new, an old one gives the columns, and its rows are left out.
    read = task_input.model_copy(update={"partitions": added or task_input.partitions[:1]})
    frame = _run_over(context, query, [context.load(read)])
    merge = increments.find_merge(frame.frame)
    if merge is None:  # another version of Spark made the previous result
        return _run_over(context, query, context.inputs)
    previous_input = task_input.model_copy(
        update={"partitions": [task.previous], "where": None, "time_column": None}
    )
    previous = context.load(previous_input).frame
    rows = merge.apply(previous, frame.frame) if added else previous
    return replace(frame, frame=rows, made_from=list(digests))


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
