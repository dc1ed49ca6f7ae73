"""Cold data against the chain: gaps, duplicates, and blocks whose rows are not the chain's."""

from collections.abc import Sequence
from functools import reduce
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from trace_etl.api.task.events import Invalidation
from trace_etl.api.task.payload import InputPartition, TaskInput
from trace_etl.dag.operator_configs import IntegrityConfig
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadTask
from trace_etl.spark.evm.tables import SCHEMAS
from trace_etl.spark.io.inputs import Input
from trace_etl.spark.io.writers import Frame

_KEYS = {
    "blocks": ("block_number",),
    "transactions": ("block_number", "transaction_index"),
    "logs": ("block_number", "log_index"),
}
_BLOCK = "block_number"
_RUNS = 10
_BLOCKS_PER_TASK = 5000
_FINDINGS = "block_number bigint, problem string, expected_rows bigint, found_rows bigint"


def run(context: OperatorContext, config: IntegrityConfig) -> Frame:
    """One row a finding; none when all is well. Raises BadTask when it is another table."""
    start, end = context.block_range()
    [given] = context.inputs
    cold = given.frame
    schema = SCHEMAS[config.table]
    missing = [name for name in schema.names if name not in cold.columns]
    if missing:
        raise BadTask(f"integrity_check: the input has no column {missing[0]} of {config.table}")
    blocks = sample(start, end, config.sample_blocks)
    chain = _chain(context.spark, config.table, context.rpc_urls(config.rpc), blocks)
    held = cold if config.sample_blocks is None else cold.where(_within(blocks))
    found = differences(held, chain, schema.names).unionByName(
        duplicates(cold, _KEYS[config.table])
    )
    if config.table == "blocks" and config.sample_blocks is not None:
        found = found.unionByName(gaps(context.spark, cold, start, end)).distinct()
    # Findings are few, or few are reported: the only rows that come to the driver.
    findings = cast("list[Any]", found.orderBy(_BLOCK, "problem").take(config.most_findings))
    frame = context.spark.createDataFrame(findings, _FINDINGS)
    doubtful = _doubtful(context.task.inputs[0], [row[_BLOCK] for row in findings])
    return Frame(context.outputs[0], frame, invalidations=doubtful)


def sample(start: int, end: int, count: int | None) -> list[tuple[int, int]]:
    """The ranges of blocks to compare: the whole, or a few runs evenly spread over it."""
    total = end - start + 1
    if count is None or count >= total:
        return [(start, end)]
    runs = min(count, _RUNS)
    length = count // runs
    gap = (total - length) / max(1, runs - 1)
    firsts = [start + round(n * gap) for n in range(runs)]
    return [(first, first + length - 1) for first in firsts]


def differences(cold: DataFrame, chain: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Blocks whose rows are not the same on both sides, by count and by the sum of their hashes."""
    sides = _fingerprint(chain, columns, "expected").join(
        _fingerprint(cold, columns, "found"), _BLOCK, "full_outer"
    )
    expected, found = (F.coalesce(f"{side}_rows", F.lit(0)) for side in ("expected", "found"))
    problem = (
        F.when(found == 0, "missing")
        .when(expected == 0, "not on the chain")
        .when(expected != found, "another number of rows")
        .otherwise("other rows")
    )
    same = (expected == found) & F.col("expected_sum").eqNullSafe(F.col("found_sum"))
    return sides.where(~same).select(
        _BLOCK,
        problem.alias("problem"),
        expected.cast("long").alias("expected_rows"),
        found.cast("long").alias("found_rows"),
    )


def duplicates(cold: DataFrame, key: Sequence[str]) -> DataFrame:
    """Blocks with a row that is there twice."""
    counted = cold.groupBy(*key).count().where("count > 1")
    return counted.groupBy(_BLOCK).agg(
        F.lit("duplicates").alias("problem"),
        F.count(F.lit(1)).alias("expected_rows"),
        F.sum("count").alias("found_rows"),
    )


def gaps(spark: SparkSession, cold: DataFrame, start: int, end: int) -> DataFrame:
    """Blocks of the range that are not there at all."""
    wanted = spark.range(start, end + 1).withColumnRenamed("id", _BLOCK)
    return wanted.join(cold.select(_BLOCK), _BLOCK, "left_anti").select(
        _BLOCK,
        F.lit("missing").alias("problem"),
        F.lit(1).cast("long").alias("expected_rows"),
        F.lit(0).cast("long").alias("found_rows"),
    )


def _fingerprint(frame: DataFrame, columns: Sequence[str], side: str) -> DataFrame:
    # The hash passes over nulls: that a value is missing must count too, and in which column.
    values = [F.col(name) for name in columns]
    hashed = F.xxhash64(*values, *(value.isNull() for value in values))
    return frame.groupBy(_BLOCK).agg(
        F.count(F.lit(1)).alias(f"{side}_rows"),
        F.sum(hashed.cast("decimal(38,0)")).alias(f"{side}_sum"),
    )


def _chain(
    spark: SparkSession, table: str, urls: Sequence[str], ranges: Sequence[tuple[int, int]]
) -> DataFrame:
    parts = [
        spark.read.format("evm")
        .option("rpc_url", " ".join(urls))
        .option("dataset", table)
        .option("start", start)
        .option("end", end)
        .option("partition_size", _BLOCKS_PER_TASK)
        .load()
        for start, end in ranges
    ]
    return reduce(DataFrame.unionByName, parts)


def _within(ranges: Sequence[tuple[int, int]]) -> Column:
    return reduce(Column.__or__, [F.col(_BLOCK).between(*one) for one in ranges])


def _doubtful(given: TaskInput, blocks: Sequence[int]) -> list[Invalidation]:
    """The partitions that hold a block with a finding; blocks of none are nobody's yet."""
    return [
        Invalidation(
            kind="partition",
            dataset_uuid=given.dataset_uuid,
            dataset_version=given.dataset_version,
            partition_key=part.partition_key,
            start=part.start,
            end=part.end,
            reason=f"integrity_check: block {found[0]} is not as the chain has it",
            key=part.partition_key,
        )
        for part in given.partitions
        if (found := [block for block in blocks if _holds(part, block)])
    ]


def _holds(part: InputPartition, block: int) -> bool:
    return part.start is None or part.end is None or part.start <= block <= part.end


def output_schemas(outputs: Sequence[str], _: Sequence[Input]) -> dict[str, StructType]:
    """Return the columns of its findings."""
    return dict.fromkeys(outputs, cast("StructType", StructType.fromDDL(_FINDINGS)))
