"""Join columns of a second input, or labels from the config, to the rows of the first input."""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from trace_etl.dag.operator_configs import EnrichConfig
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadTask
from trace_etl.spark.io.column_names import quote_name
from trace_etl.spark.io.inputs import Input, literal
from trace_etl.spark.io.writers import Frame

_KEY = "_key_"


def run(context: OperatorContext, config: EnrichConfig) -> Frame:
    """Return the rows of the first input with the added columns. Raises BadTask."""
    base = context.inputs[0]
    lookup = _make_labels(context.spark, base, config) if config.labels else context.inputs[1]
    frame = join_lookup(base.frame, lookup.frame, config, is_small=lookup.is_small)
    return Frame(context.outputs[0], frame, is_large=not base.is_small)


def join_lookup(
    base: DataFrame, lookup: DataFrame, config: EnrichConfig, *, is_small: bool
) -> DataFrame:
    """Join the lookup columns to the base rows. Raises BadTask for a missing or repeated column."""
    _check_columns(base, list(config.on), "the first input")
    _check_columns(lookup, [*config.on.values(), *config.columns], "the lookup input")
    added = config.columns or [c for c in lookup.columns if c not in config.on.values()]
    names = {column: f"{config.prefix}{column}" for column in added}
    existing = {name.lower() for name in base.columns}
    for name in names.values():
        if name.lower() in existing:
            raise BadTask(f"enrich: the first input already has a column {name}; set `prefix`")
    keys = [_quote_column(right).alias(f"{_KEY}{n}") for n, right in enumerate(config.on.values())]
    values = [_quote_column(column).alias(name) for column, name in names.items()]
    side = lookup.select(*keys, *values)
    if config.matches == "one":
        side = _keep_smallest(side, list(names.values()))
    matches = [base[_quote(left)] == side[f"{_KEY}{n}"] for n, left in enumerate(config.on)]
    joined = base.join(F.broadcast(side) if is_small else side, matches, config.how)
    return joined.select(
        *(base[_quote(c)] for c in base.columns), *map(_quote_column, names.values())
    )


def _keep_smallest(lookup: DataFrame, values: list[str]) -> DataFrame:
    """Keep the smallest row per key, so that every run gives the same result."""
    keys = [name for name in lookup.columns if name.startswith(_KEY)]
    if not values:
        return lookup.dropDuplicates(keys)
    least = lookup.groupBy(*keys).agg(F.min(F.struct(*map(_quote_column, values))).alias("least"))
    return least.select(*keys, *(F.col("least").getField(name).alias(name) for name in values))


def _make_labels(spark: SparkSession, base: Input, config: EnrichConfig) -> Input:
    [column] = config.on
    _check_columns(base.frame, [column], "the first input")
    kind = base.frame.schema[column].dataType
    schema = StructType([StructField("value", StringType()), StructField("label", StringType())])
    rows = spark.createDataFrame(list(config.labels.items()), schema)
    value: Column = F.col("value")
    if isinstance(kind, BinaryType):
        for text in config.labels:
            literal(text, kind)  # raises BadTask for a value that is not hexadecimal
        value = F.unhex(F.substring(value, 3, 1 << 20))
    return Input("labels", rows.select(value.cast(kind).alias("value"), "label"), is_small=True)


def _check_columns(frame: DataFrame, names: list[str], side: str) -> None:
    for name in names:
        if name not in frame.columns:
            raise BadTask(f"enrich: {side} has no column {name}; correct `on` or `columns`")


def _quote(name: str) -> str:
    return quote_name(name)


def _quote_column(name: str) -> Column:
    return F.col(_quote(name))
