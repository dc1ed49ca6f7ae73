"""Build the tables of a chain, with cryo's column names and types that all readers share."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trace_etl.dag.chain.tables import CHAIN_TABLES
from trace_etl.data.columns import declared_arrow_type
from trace_etl.spark.errors import ChainMismatch
from trace_etl.spark.evm.chunk import BlockChunk
from trace_etl.spark.evm.columns import (
    count_bytes,
    join_lists,
    parse_binary,
    parse_integers,
    parse_wide_integers,
    repeat_constant,
    repeat_values,
    take_nth,
)

SCHEMAS: dict[str, Any] = {
    table: pa.schema([(column.name, declared_arrow_type(column.type)) for column in columns])
    for table, columns in CHAIN_TABLES.items()
}


def build_table(table: str, chunk: BlockChunk, chain_id: int) -> Any:
    """Build one table of a chunk. Raises ChainMismatch if a value does not fit its column."""
    try:
        columns = _BUILDERS[table](chunk, chain_id)
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[table])
    except (ValueError, TypeError, OverflowError) as error:
        first, last = (int(chunk.blocks.field("number")[at].as_py(), 16) for at in (0, -1))
        raise ChainMismatch(
            f"{table} of blocks {first} to {last}: {type(error).__name__}: {error}"
        ) from error


def _build_blocks(chunk: BlockChunk, chain_id: int) -> list[Any]:
    column = chunk.blocks.field
    return [
        parse_binary(column("hash")),
        parse_binary(column("miner")),
        parse_integers(column("number")),
        parse_integers(column("gasUsed")),
        parse_binary(column("extraData")),
        parse_integers(column("timestamp")),
        parse_integers(column("baseFeePerGas"), optional=True),
        repeat_constant(chain_id, len(chunk.blocks)),
    ]


def _build_transactions(chunk: BlockChunk, chain_id: int) -> list[Any]:
    column, receipt = chunk.transactions.field, chunk.receipts.field
    data = parse_binary(column("input"))
    n_bytes, n_zero = count_bytes(data)
    return [
        parse_integers(column("blockNumber")),
        parse_integers(column("transactionIndex")),
        parse_binary(column("hash")),
        parse_integers(column("nonce")),
        parse_binary(column("from")),
        parse_binary(column("to"), optional=True),
        *parse_wide_integers(column("value")),
        data,
        parse_integers(column("gas")),
        parse_integers(receipt("gasUsed")),
        parse_integers(column("gasPrice"), optional=True),
        parse_integers(pc.fill_null(column("type"), "0x0")),
        parse_integers(column("maxPriorityFeePerGas"), optional=True),
        parse_integers(column("maxFeePerGas"), optional=True),
        # Before Byzantium a receipt has a state root instead of a status: the result is null.
        pc.equal(receipt("status"), "0x1"),
        n_bytes,
        n_zero,
        pc.subtract(n_bytes, n_zero),
        repeat_constant(chain_id, len(chunk.transactions)),
    ]


def _build_logs(chunk: BlockChunk, chain_id: int) -> list[Any]:
    column = chunk.logs.field
    data = parse_binary(column("data"))
    return [
        parse_integers(column("blockNumber")),
        parse_integers(column("transactionIndex")),
        parse_integers(column("logIndex")),
        parse_binary(column("transactionHash")),
        parse_binary(column("address")),
        *(parse_binary(take_nth(column("topics"), index), optional=True) for index in range(4)),
        data,
        count_bytes(data)[0],
        repeat_constant(chain_id, len(chunk.logs)),
    ]


def _build_traces(chunk: BlockChunk, chain_id: int) -> list[Any]:
    column = chunk.traces.field
    action, result = column("action").field, column("result").field
    # A self-destruct has other field names: address, refundAddress, balance.
    value = pc.coalesce(action("value"), action("balance"))
    exact, decimal, double = parse_wide_integers(value)
    return [
        parse_binary(
            pc.coalesce(action("from"), action("author"), action("address")), optional=True
        ),
        parse_binary(pc.coalesce(action("to"), action("refundAddress")), optional=True),
        decimal,
        parse_integers(action("gas"), optional=True),
        parse_binary(action("input"), optional=True),
        action("callType"),
        parse_binary(action("init"), optional=True),
        action("rewardType"),
        column("type"),
        parse_integers(result("gasUsed"), optional=True),
        parse_binary(result("output"), optional=True),
        parse_binary(result("code"), optional=True),
        parse_binary(result("address"), optional=True),
        join_lists(column("traceAddress"), "_"),
        column("subtraces"),
        column("transactionPosition"),
        parse_binary(column("transactionHash"), optional=True),
        column("blockNumber"),
        parse_binary(column("blockHash")),
        column("error"),
        repeat_constant(chain_id, len(chunk.traces)),
        exact,
        double,
    ]


def _build_withdrawals(chunk: BlockChunk, chain_id: int) -> list[Any]:
    lists = chunk.blocks.field("withdrawals")
    lengths = pc.fill_null(pc.list_value_length(lists), 0)  # blocks before Shanghai have none
    counts = np.asarray(lengths).astype(np.int64)
    rows = lists.flatten()
    return [
        parse_integers(repeat_values(chunk.blocks.field("number"), counts)),
        parse_binary(repeat_values(chunk.blocks.field("hash"), counts)),
        parse_integers(rows.field("index")),
        parse_integers(rows.field("validatorIndex")),
        parse_binary(rows.field("address")),
        parse_integers(rows.field("amount")),
        repeat_constant(chain_id, len(rows)),
    ]


_BUILDERS = {
    "blocks": _build_blocks,
    "transactions": _build_transactions,
    "logs": _build_logs,
    "traces": _build_traces,
    "withdrawals": _build_withdrawals,
}
