"""Compare cold data with the chain: find gaps, duplicates and blocks with different rows."""

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
    """Return one row per finding. Raises BadTask if the input lacks a column of the table."""
    start, end = context.block_range()
    [cold_input] = context.inputs
    cold = cold_input.frame
    schema = SCHEMAS[config.table]
    missing = [name for name in _KEYS[config.table] if name not in cold.columns]
    if missing:
        raise BadTask(
            f"integrity_check: the input has no column {missing[0]} of {config.table}; correct `table`"
        )
    columns = [name for name in schema.names if name in cold.columns]
    ranges = sample_ranges(start, end, config.sample_blocks)
    chain = _read_chain(context.spark, config.table, context.rpc_urls(config.rpc), ranges)
    sampled = cold if config.sample_blocks is None else cold.where(_is_in_ranges(ranges))
    differences = find_differences(sampled, chain, columns).unionByName(
        find_duplicates(cold, _KEYS[config.table])
    )
    if config.table == "blocks" and config.sample_blocks is not None:
        differences = differences.unionByName(find_gaps(context.spark, cold, start, end)).distinct()
    # The driver collects findings only, and their number is limited.
    findings = cast("list[Any]", differences.orderBy(_BLOCK, "problem").take(config.most_findings))
    frame = context.spark.createDataFrame(findings, _FINDINGS)
    invalid = _make_invalidations(context.task.inputs[0], [row[_BLOCK] for row in findings])
    return Frame(context.outputs[0], frame, invalidations=invalid)


def sample_ranges(start: int, end: int, count: int | None) -> list[tuple[int, int]]:
    """Return the block ranges to compare: the whole range, or a few runs evenly spread over it."""
    total = end - start + 1
    if count is None or count >= total:
        return [(start, end)]
    runs = min(count, _RUNS)
    length = count // runs
    gap = (total - length) / max(1, runs - 1)
    firsts = [start + round(n * gap) for n in range(runs)]
    return [(first, first + length - 1) for first in firsts]


def find_differences(cold: DataFrame, chain: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Find blocks whose number of rows or sum of row hashes differs between the two sides."""
    sides = _compute_fingerprints(chain, columns, "expected").join(
        _compute_fingerprints(cold, columns, "found"), _BLOCK, "full_outer"
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


def find_duplicates(cold: DataFrame, key: Sequence[str]) -> DataFrame:
    """Find blocks with more than one row for the same key."""
    counted = cold.groupBy(*key).count().where("count > 1")
    return counted.groupBy(_BLOCK).agg(
        F.lit("duplicates").alias("problem"),
        F.count(F.lit(1)).alias("expected_rows"),
        F.sum("count").alias("found_rows"),
    )


def find_gaps(spark: SparkSession, cold: DataFrame, start: int, end: int) -> DataFrame:
    """Find blocks of the range without any row."""
    expected = spark.range(start, end + 1).withColumnRenamed("id", _BLOCK)
    return expected.join(cold.select(_BLOCK), _BLOCK, "left_anti").select(
        _BLOCK,
        F.lit("missing").alias("problem"),
        F.lit(1).cast("long").alias("expected_rows"),
        F.lit(0).cast("long").alias("found_rows"),
    )


def _compute_fingerprints(frame: DataFrame, columns: Sequence[str], side: str) -> DataFrame:
    # xxhash64 skips nulls, so the null flag of each column is hashed as well.
    values = [F.col(name) for name in columns]
    hashed = F.xxhash64(*values, *(value.isNull() for value in values))
    return frame.groupBy(_BLOCK).agg(
        F.count(F.lit(1)).alias(f"{side}_rows"),
        F.sum(hashed.cast("decimal(38,0)")).alias(f"{side}_sum"),
    )


def _read_chain(
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


def _is_in_ranges(ranges: Sequence[tuple[int, int]]) -> Column:
    return reduce(Column.__or__, [F.col(_BLOCK).between(*span) for span in ranges])


def _make_invalidations(task_input: TaskInput, blocks: Sequence[int]) -> list[Invalidation]:
    """Invalidate the input partitions that contain a block with a finding."""
    return [
        Invalidation(
            kind="partition",
            dataset_uuid=task_input.dataset_uuid,
            dataset_version=task_input.dataset_version,
            partition_key=part.partition_key,
            start=part.start,
            end=part.end,
            reason=f"integrity_check: block {defects[0]} differs from the chain",
            key=part.partition_key,
        )
        for part in task_input.partitions
        if (defects := [block for block in blocks if _contains(part, block)])
    ]


def _contains(part: InputPartition, block: int) -> bool:
    return part.start is None or part.end is None or part.start <= block <= part.end


def output_schemas(
    outputs: Sequence[str], _: Sequence[Input], config: object
) -> dict[str, StructType]:
    """Return the columns of a finding."""
    return dict.fromkeys(outputs, cast("StructType", StructType.fromDDL(_FINDINGS)))
