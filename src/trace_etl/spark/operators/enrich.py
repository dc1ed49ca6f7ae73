"""Rows of one input with columns of another, or with labels out of the config."""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from trace_etl.dag.operator_configs import EnrichConfig
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadTask
from trace_etl.spark.io.inputs import Input, literal
from trace_etl.spark.io.writers import Frame

_KEY = "_key_"


def run(context: OperatorContext, config: EnrichConfig) -> Frame:
    """The first input's rows, each with what was found for it. Raises BadTask."""
    base = context.inputs[0]
    known = _labels(context.spark, base, config) if config.labels else context.inputs[1]
    frame = joined(base.frame, known.frame, config, is_small=known.is_small)
    return Frame(context.outputs[0], frame, is_large=not base.is_small)


def joined(base: DataFrame, known: DataFrame, config: EnrichConfig, *, is_small: bool) -> DataFrame:
    """The join itself. Raises BadTask naming a column that is missing or would be there twice."""
    _check(base, list(config.on), "the first input")
    _check(known, [*config.on.values(), *config.columns], "what rows are looked up in")
    taken = config.columns or [c for c in known.columns if c not in config.on.values()]
    names = {column: f"{config.prefix}{column}" for column in taken}
    there = {name.lower() for name in base.columns}
    for name in names.values():
        if name.lower() in there:
            raise BadTask(f"enrich: {name} would be there twice; set a `prefix`")
    keys = [_quoted(right).alias(f"{_KEY}{n}") for n, right in enumerate(config.on.values())]
    values = [_quoted(column).alias(name) for column, name in names.items()]
    looked_up = known.select(*keys, *values)
    if config.matches == "one":
        looked_up = _one_each(looked_up, list(names.values()))
    matched = [base[_tick(left)] == looked_up[f"{_KEY}{n}"] for n, left in enumerate(config.on)]
    side = F.broadcast(looked_up) if is_small else looked_up
    found = base.join(side, matched, config.how)
    return found.select(*(base[_tick(c)] for c in base.columns), *map(_quoted, names.values()))


def _one_each(known: DataFrame, values: list[str]) -> DataFrame:
    """One row a key, the least: the same on every run."""
    keys = [name for name in known.columns if name.startswith(_KEY)]
    if not values:
        return known.dropDuplicates(keys)
    least = known.groupBy(*keys).agg(F.min(F.struct(*map(_quoted, values))).alias("least"))
    return least.select(*keys, *(F.col("least").getField(name).alias(name) for name in values))


def _labels(spark: SparkSession, base: Input, config: EnrichConfig) -> Input:
    [column] = config.on
    _check(base.frame, [column], "the first input")
    kind = base.frame.schema[column].dataType
    schema = StructType([StructField("value", StringType()), StructField("label", StringType())])
    rows = spark.createDataFrame(list(config.labels.items()), schema)
    value: Column = F.col("value")
    if isinstance(kind, BinaryType):
        for text in config.labels:
            literal(text, kind)  # says so when one is not hexadecimal
        value = F.unhex(F.substring(value, 3, 1 << 20))
    return Input("labels", rows.select(value.cast(kind).alias("value"), "label"), is_small=True)


def _check(frame: DataFrame, wanted: list[str], what: str) -> None:
    for name in wanted:
        if name not in frame.columns:
            raise BadTask(f"enrich: {what} has no column {name}")


def _tick(name: str) -> str:
    return f"`{name}`"


def _quoted(name: str) -> Column:
    return F.col(_tick(name))
