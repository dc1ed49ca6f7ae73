"""What the first tasks would wait for, done ahead: worker processes and the source's planner."""

import importlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from pyspark.sql import SparkSession

from trace_etl.pipeline.executors import settle
from trace_etl.pipeline.session import cores
from trace_etl.pipeline.settings import PipelineSettings


def warm_up(spark: SparkSession, settings: PipelineSettings) -> None:
    """Start Python workers for reading and writing, and the planner; touches no RPC."""
    with ThreadPoolExecutor(2) as pool:
        for done in [
            pool.submit(_start_workers, spark, cores(settings.master)),
            pool.submit(_plan_a_read, spark),
        ]:
            done.result()


def _start_workers(spark: SparkSession, count: int) -> None:
    rows = spark.range(0, count, 1, count)
    rows.mapInArrow(_pass, "id bigint").mapInArrow(_pass, "id bigint").collect()


def _pass(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches
    importlib.import_module("pandas")  # pyarrow wants it as soon as it makes an array
    settle()


def _plan_a_read(spark: SparkSession) -> None:
    frame = (
        spark.read.format("evm")
        .option("rpc_url", "http://127.0.0.1")
        .option("dataset", "blocks")
        .option("start", 0)
        .option("end", 0)
        .load()
    )
    cast("Any", frame)._jdf.queryExecution().toRdd().getNumPartitions()
