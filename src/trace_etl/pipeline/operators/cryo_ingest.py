"""A range of a chain: blocks, transactions and logs, each block fetched once."""

from trace_etl.pipeline.context import OperatorContext
from trace_etl.pipeline.evm.options import BUNDLE
from trace_etl.pipeline.evm.tables import SCHEMAS
from trace_etl.pipeline.writer import Bundle
from trace_etl.plan.operators import IngestConfig

# A Spark task per this many blocks; below it the fetch is over before a shuffle pays.
_BLOCKS_PER_TASK = 5000


def run(context: OperatorContext, config: IngestConfig) -> Bundle:
    """The outputs' rows for the scope, from the named RPC pool. Raises BadTask."""
    start, end = context.block_range()
    frame = (
        context.spark.read.format("evm")
        .option("rpc_url", " ".join(context.rpc_urls(config.rpc)))
        .option("dataset", BUNDLE)
        .option("tables", ",".join(context.outputs))
        .option("start", start)
        .option("end", end)
        .option("partition_size", _BLOCKS_PER_TASK)
        .option("batch", config.batch)
        .load()
    )
    return Bundle(
        frame,
        {name: SCHEMAS[name] for name in context.outputs},
        is_parallel=start // _BLOCKS_PER_TASK != end // _BLOCKS_PER_TASK,
    )
