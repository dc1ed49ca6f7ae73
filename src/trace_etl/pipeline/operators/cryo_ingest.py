"""A range of a chain: blocks, transactions and logs, each block fetched once."""

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from trace_etl.pipeline.errors import BadTask
from trace_etl.pipeline.evm.options import BUNDLE
from trace_etl.pipeline.evm.tables import SCHEMAS
from trace_etl.pipeline.writer import Bundle
from trace_etl.plan.operators import IngestConfig
from trace_etl.wire.task import Scope

OUTPUTS = SCHEMAS
# A Spark task per this many blocks; below it the fetch is over before a shuffle pays.
_BLOCKS_PER_TASK = 5000


def read(
    spark: SparkSession,
    config: IngestConfig,
    scope: Scope | None,
    outputs: Sequence[str],
    pools: Mapping[str, tuple[str, ...]],
) -> Bundle:
    """The outputs' rows for the scope, from the named RPC pool. Raises BadTask."""
    if scope is None or scope.start is None or scope.end is None:
        raise BadTask("cryo_ingest: the task has no block range")
    unknown = [name for name in outputs if name not in OUTPUTS]
    if unknown:
        raise BadTask(f"cryo_ingest: no output {unknown[0]}; there are {', '.join(OUTPUTS)}")
    if not pools.get(config.rpc):
        raise BadTask(f"cryo_ingest: no RPC pool is called {config.rpc}")
    frame = (
        spark.read.format("evm")
        .option("rpc_url", " ".join(pools[config.rpc]))
        .option("dataset", BUNDLE)
        .option("tables", ",".join(outputs))
        .option("start", scope.start)
        .option("end", scope.end)
        .option("partition_size", _BLOCKS_PER_TASK)
        .option("batch", config.batch)
        .load()
    )
    return Bundle(
        frame,
        {name: OUTPUTS[name] for name in outputs},
        is_parallel=scope.start // _BLOCKS_PER_TASK != scope.end // _BLOCKS_PER_TASK,
    )
