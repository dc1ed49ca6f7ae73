"""A SELECT whose result is for people or other tools: Parquet, CSV or JSON lines."""

from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from trace_etl.dag.operator_configs import QueryConfig
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.io.writers import Frame
from trace_etl.spark.operators.sql import select


def run(context: OperatorContext, config: QueryConfig) -> Frame:
    """The result, in the order that the SELECT asks for. Raises BadSql."""
    result = select(context.spark, config.sql, context.inputs, context.outputs[0])
    if config.format == "parquet":
        return result
    shaped = _lines(result.frame) if config.format == "json" else _cells(result.frame)
    # A text file shows the SELECT's own order, or none: nothing is sorted by block in it.
    return replace(result, frame=shaped, suffix=config.format, is_ordered=True)


def _lines(frame: DataFrame) -> DataFrame:
    """One JSON text a row, with every field, null or not."""
    whole = F.struct(
        *(_readable(F.col(f"`{f.name}`"), f.dataType).alias(f.name) for f in frame.schema)
    )
    return frame.select(F.to_json(whole, {"ignoreNullFields": "false"}).alias("line"))


def _cells(frame: DataFrame) -> DataFrame:
    """Columns that a cell can hold: what is nested becomes JSON."""
    return frame.select(
        *(_cell(F.col(f"`{f.name}`"), f.dataType).alias(f.name) for f in frame.schema)
    )


def _cell(column: Column, kind: DataType) -> Column:
    readable = _readable(column, kind)
    return F.to_json(readable) if isinstance(kind, ArrayType | StructType | MapType) else readable


def _readable(column: Column, kind: DataType) -> Column:
    """Bytes as 0x…, wherever they are."""
    if isinstance(kind, BinaryType):
        return F.concat(F.lit("0x"), F.lower(F.hex(column)))
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda item: _readable(item, kind.elementType))
    if isinstance(kind, MapType):
        return F.transform_values(column, lambda _, value: _readable(value, kind.valueType))
    if isinstance(kind, StructType):
        fields = [_readable(column.getField(f.name), f.dataType).alias(f.name) for f in kind.fields]
        return F.when(column.isNotNull(), F.struct(*fields))
    return column
