"""Fetch a range of blocks from a chain into tables. All tables come from one fetch per block."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trace_etl.dag.chain.rules import Finality, VerifyRules
from trace_etl.dag.chain.tables import ColumnChoice
from trace_etl.dag.operators import IngestConfig
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.evm.fetch import DEFAULT_RULES, RangeReader, RpcSource
from trace_etl.spark.evm.finality import check_finality
from trace_etl.spark.evm.options import BUNDLE, VERIFIED
from trace_etl.spark.evm.tables import build_table, make_schema
from trace_etl.spark.io.writers import Bundle, Split

# Blocks per Spark task. Smaller ranges run as one task: splitting them costs more than it saves.
_BLOCKS_PER_TASK = 5000
# How the chain orders the rows of each table.
_SORTED_BY = {
    "blocks": ("block_number",),
    "transactions": ("block_number", "transaction_index"),
    "logs": ("block_number", "transaction_index", "log_index"),
    "traces": ("block_number",),
    "withdrawals": ("block_number",),
    "uncles": ("block_number",),
}


def run(context: OperatorContext, config: IngestConfig) -> Bundle | Split:
    """Return the rows of the task's range, from the named RPC pool. Raises BadTask."""
    start, end = context.block_range()
    urls, rules = context.rpc_urls(config.rpc), context.verify_rules(config)
    source = _make_source(context, urls, config)
    columns, finality = config.column_choice, _choose_finality(context, config)
    tables = {name: make_schema(name, columns) for name in context.outputs}
    if start // _BLOCKS_PER_TASK == end // _BLOCKS_PER_TASK:
        # One executor fetches and writes, so no row goes through the JVM.
        fetch = FetchRange(source, tuple(tables), start, end, rules, columns, finality)
        one_row = context.spark.range(0, 1, 1, 1)  # one task
        return Split(one_row, fetch, tables, sorted_by=_SORTED_BY)
    frame = (
        context.spark.read.format("evm")
        .option("rpc_url", " ".join(source.urls))
        .option("dataset", BUNDLE)
        .option("tables", ",".join(context.outputs))
        .option("start", start)
        .option("end", end)
        .option("partition_size", _BLOCKS_PER_TASK)
        .option("batch", config.batch)
        .option("columns", columns if isinstance(columns, str) else ",".join(columns))
        .option("finality", finality)
        .option("verify", rules.level)
        .option("exceptions", ",".join(rules.exceptions))
        .option("verify_senders", str(rules.senders).lower())
        .load()
    )
    return Bundle(frame, tables, is_parallel=True, sorted_by=_SORTED_BY)


def _choose_finality(context: OperatorContext, config: IngestConfig) -> Finality:
    """Return the finality of a task: one that reads provisional blocks again needs final blocks."""
    parameters = context.task.parameters
    return "finalized" if parameters is not None and parameters.recheck else config.finality


def _make_source(
    context: OperatorContext, urls: tuple[str, ...], config: IngestConfig
) -> RpcSource:
    """Make the source of the reads, with all endpoints at once in the first attempt.

    Later attempts read from one endpoint each, in turn, in case the endpoints serve different forks.
    """
    turn = (context.task.attempt - 1) % len(urls)
    is_first = context.task.attempt == 1
    return RpcSource((*urls[turn:], *urls[:turn]), batch=config.batch, spread=is_first)


@dataclass(frozen=True)
class FetchRange:
    """Fetches a range of blocks on an executor and yields record batches of its tables."""

    source: RpcSource
    tables: tuple[str, ...]
    start: int
    end: int
    rules: VerifyRules = DEFAULT_RULES
    columns: ColumnChoice = "standard"
    finality: Finality = 0

    def __call__(self, _: Any) -> Iterator[tuple[str, Any]]:
        is_provisional = check_finality(self.source, self.end, self.finality)
        with RangeReader(self.source, self.tables, self.rules, self.columns) as reader:
            chain_id = reader.chain_id()
            for chunk in reader.chunks(self.start, self.end):
                for table in self.tables:
                    yield table, build_table(table, chunk, chain_id, self.columns)
            yield VERIFIED, reader.verified(is_provisional=is_provisional)
