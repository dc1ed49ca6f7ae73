"""A user's SELECT over the inputs, by their names. Spark's own parser says what a SELECT is."""

from collections.abc import Sequence
from typing import Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
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

from trace_etl.pipeline.context import OperatorContext
from trace_etl.pipeline.errors import BadSql
from trace_etl.pipeline.inputs import Input
from trace_etl.pipeline.writer import Frame
from trace_etl.plan.operators import SqlConfig

_NOT_STORED = (NullType, AnsiIntervalType, CalendarIntervalType, VariantType)
_ORDERED = ("Sort", "GlobalLimit", "LocalLimit", "Offset")


def run(context: OperatorContext, config: SqlConfig) -> Frame:
    """The rows of the SELECT as the only output. Raises BadSql."""
    return select(context.spark, config.sql, context.inputs, context.outputs[0])


def select(spark: SparkSession, text: str, inputs: Sequence[Input], output: str) -> Frame:
    """The result of the SELECT. `spark` must be this task's own session. Raises BadSql."""
    plan = _parse(spark, text)
    for given in inputs:
        given.frame.createOrReplaceTempView(given.name)
    try:
        frame = _analyse(spark, plan)
    except PySparkException as error:
        names = ", ".join(given.name for given in inputs) or "none"
        raise BadSql(f"{_first_line(error)} (inputs: {names})") from error
    _check_columns(frame.schema)
    return Frame(
        output,
        frame,
        is_ordered=_root(plan) in _ORDERED,
        is_large=not all(given.is_small for given in inputs),
    )


def _parse(spark: SparkSession, text: str) -> Any:
    """The plan of one query. Commands, scripts and several statements do not parse as one."""
    try:
        parser = cast("Any", spark)._jsparkSession.sessionState().sqlParser()
        plan = parser.parseQuery(text.strip().removesuffix(";"))
    except PySparkException as error:
        raise BadSql(f"not one SELECT: {_first_line(error)}") from error
    if "ScriptTransformation" in plan.treeString():
        raise BadSql("not one SELECT: TRANSFORM … USING runs a program")
    return plan


def _analyse(spark: SparkSession, plan: Any) -> DataFrame:
    jvm, session = cast("Any", spark)._jvm, cast("Any", spark)._jsparkSession
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, plan), spark)


def _check_columns(schema: StructType) -> None:
    """Every column can be stored and found again. Raises BadSql naming the one that cannot."""
    seen: set[str] = set()
    for field in schema.fields:
        if field.name.lower() in seen:
            raise BadSql(f"two columns are called {field.name}; give one of them an alias")
        seen.add(field.name.lower())
        if _has_no_place(field.dataType):
            raise BadSql(
                f"column {field.name} is {field.dataType.simpleString()}, which Parquet "
                "does not hold; CAST it"
            )


def _has_no_place(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return not kind.fields or any(_has_no_place(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_no_place(kind.elementType)
    if isinstance(kind, MapType):
        return _has_no_place(kind.keyType) or _has_no_place(kind.valueType)
    return isinstance(kind, _NOT_STORED)


def _root(plan: Any) -> str:
    name = plan.nodeName()
    return plan.children().head().nodeName() if name == "UnresolvedWith" else name


def _first_line(error: PySparkException) -> str:
    return str(error).strip().partition("\n")[0]
