"""Run a SELECT and write its result for people or other tools: Parquet, CSV or JSON lines."""

from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from trace_etl.dag.operator_configs import QueryConfig
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.io.column_names import quote_name
from trace_etl.spark.io.writers import Frame
from trace_etl.spark.operators.sql import run_select


def run(context: OperatorContext, config: QueryConfig) -> Frame:
    """Return the result in the order of the SELECT. Raises BadSql."""
    result = run_select(context, config.sql)
    if config.format == "parquet":
        return result
    text = (
        _convert_to_json_lines(result.frame)
        if config.format == "json"
        else _convert_to_csv(result.frame)
    )
    # `is_ordered` keeps the writer from sorting by block: a text file keeps the SELECT's order.
    return replace(result, frame=text, suffix=config.format, is_ordered=True)


def _convert_to_json_lines(frame: DataFrame) -> DataFrame:
    """Convert each row to one JSON text with every field, including nulls."""
    row = F.struct(
        *(_make_readable(F.col(quote_name(f.name)), f.dataType).alias(f.name) for f in frame.schema)
    )
    return frame.select(F.to_json(row, {"ignoreNullFields": "false"}).alias("line"))


def _convert_to_csv(frame: DataFrame) -> DataFrame:
    """Convert every column to one that a CSV cell can hold: nested values become JSON."""
    return frame.select(
        *(_convert_cell(F.col(quote_name(f.name)), f.dataType).alias(f.name) for f in frame.schema)
    )


def _convert_cell(column: Column, kind: DataType) -> Column:
    readable = _make_readable(column, kind)
    return F.to_json(readable) if isinstance(kind, ArrayType | StructType | MapType) else readable


def _make_readable(column: Column, kind: DataType) -> Column:
    """Convert bytes to 0x… text, also inside nested values."""
    if isinstance(kind, BinaryType):
        return F.concat(F.lit("0x"), F.lower(F.hex(column)))
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda item: _make_readable(item, kind.elementType))
    if isinstance(kind, MapType):
        return F.transform_values(column, lambda _, value: _make_readable(value, kind.valueType))
    if isinstance(kind, StructType):
        fields = [
            _make_readable(column.getField(f.name), f.dataType).alias(f.name) for f in kind.fields
        ]
        return F.when(column.isNotNull(), F.struct(*fields))
    return column
