"""Fetch a range of blocks from a chain into tables. All tables come from one fetch per block."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trace_etl.dag.operators import IngestConfig
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.evm.fetch import RangeReader, RpcSource
from trace_etl.spark.evm.options import BUNDLE
from trace_etl.spark.evm.tables import SCHEMAS, build_table
from trace_etl.spark.io.writers import Bundle, Split

# Blocks per Spark task. Smaller ranges run as one task: splitting them costs more than it saves.
_BLOCKS_PER_TASK = 5000


def run(context: OperatorContext, config: IngestConfig) -> Bundle | Split:
    """Return the rows of the task's range, from the named RPC pool. Raises BadTask."""
    start, end = context.block_range()
    urls = context.rpc_urls(config.rpc)
    tables = {name: SCHEMAS[name] for name in context.outputs}
    if start // _BLOCKS_PER_TASK == end // _BLOCKS_PER_TASK:
        # One executor fetches and writes, so no row goes through the JVM.
        fetch = FetchRange(RpcSource(urls, batch=config.batch), tuple(tables), start, end)
        return Split(context.spark.range(0, 1, 1, 1), fetch, tables)  # one row, one task
    frame = (
        context.spark.read.format("evm")
        .option("rpc_url", " ".join(urls))
        .option("dataset", BUNDLE)
        .option("tables", ",".join(context.outputs))
        .option("start", start)
        .option("end", end)
        .option("partition_size", _BLOCKS_PER_TASK)
        .option("batch", config.batch)
        .load()
    )
    return Bundle(frame, tables, is_parallel=True)


@dataclass(frozen=True)
class FetchRange:
    """Fetches a range of blocks on an executor and yields record batches of its tables."""

    source: RpcSource
    tables: tuple[str, ...]
    start: int
    end: int

    def __call__(self, _: Any) -> Iterator[tuple[str, Any]]:
        with RangeReader(self.source, self.tables) as reader:
            chain_id = reader.chain_id()
            for chunk in reader.chunks(self.start, self.end):
                for table in self.tables:
                    yield table, build_table(table, chunk, chain_id)
