"""The tables of a chain: cryo's column names, types every reader agrees on."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trace_etl.pipeline.errors import ChainMismatch
from trace_etl.pipeline.evm.columns import (
    binary,
    constant,
    integers,
    nth,
    sizes,
    wide_integers,
)

_LONG, _BYTES, _TEXT, _DOUBLE, _FLAG = (
    pa.int64(),
    pa.binary(),
    pa.string(),
    pa.float64(),
    pa.bool_(),
)

SCHEMAS: dict[str, Any] = {
    "blocks": pa.schema(
        [
            ("block_hash", _BYTES),
            ("author", _BYTES),
            ("block_number", _LONG),
            ("gas_used", _LONG),
            ("extra_data", _BYTES),
            ("timestamp", _LONG),
            ("base_fee_per_gas", _LONG),
            ("chain_id", _LONG),
        ]
    ),
    "transactions": pa.schema(
        [
            ("block_number", _LONG),
            ("transaction_index", _LONG),
            ("transaction_hash", _BYTES),
            ("nonce", _LONG),
            ("from_address", _BYTES),
            ("to_address", _BYTES),
            ("value_binary", _BYTES),
            ("value_string", _TEXT),
            ("value_f64", _DOUBLE),
            ("input", _BYTES),
            ("gas_limit", _LONG),
            ("gas_used", _LONG),
            ("gas_price", _LONG),
            ("transaction_type", _LONG),
            ("max_priority_fee_per_gas", _LONG),
            ("max_fee_per_gas", _LONG),
            ("success", _FLAG),
            ("n_input_bytes", _LONG),
            ("n_input_zero_bytes", _LONG),
            ("n_input_nonzero_bytes", _LONG),
            ("chain_id", _LONG),
        ]
    ),
    "logs": pa.schema(
        [
            ("block_number", _LONG),
            ("transaction_index", _LONG),
            ("log_index", _LONG),
            ("transaction_hash", _BYTES),
            ("address", _BYTES),
            ("topic0", _BYTES),
            ("topic1", _BYTES),
            ("topic2", _BYTES),
            ("topic3", _BYTES),
            ("data", _BYTES),
            ("n_data_bytes", _LONG),
            ("chain_id", _LONG),
        ]
    ),
}


@dataclass(frozen=True)
class Chunk:
    """Consecutive blocks as the node told them, checked; receipts match the transactions."""

    blocks: Any
    transactions: Any
    receipts: Any
    logs: Any


def build(table: str, chunk: Chunk, chain_id: int) -> Any:
    """One table of a chunk. Raises ChainMismatch when a value is not what its column holds."""
    try:
        columns = _BUILDERS[table](chunk, chain_id)
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[table])
    except (ValueError, TypeError, OverflowError) as error:
        first, last = (int(chunk.blocks.field("number")[at].as_py(), 16) for at in (0, -1))
        raise ChainMismatch(
            f"{table} of blocks {first} to {last}: {type(error).__name__}: {error}"
        ) from error


def _blocks(chunk: Chunk, chain_id: int) -> list[Any]:
    column = chunk.blocks.field
    return [
        binary(column("hash")),
        binary(column("miner")),
        integers(column("number")),
        integers(column("gasUsed")),
        binary(column("extraData")),
        integers(column("timestamp")),
        integers(column("baseFeePerGas"), optional=True),
        constant(chain_id, len(chunk.blocks)),
    ]


def _transactions(chunk: Chunk, chain_id: int) -> list[Any]:
    column, receipt = chunk.transactions.field, chunk.receipts.field
    data = binary(column("input"))
    n_bytes, n_zero = sizes(data)
    return [
        integers(column("blockNumber")),
        integers(column("transactionIndex")),
        binary(column("hash")),
        integers(column("nonce")),
        binary(column("from")),
        binary(column("to"), optional=True),
        *wide_integers(column("value")),
        data,
        integers(column("gas")),
        integers(receipt("gasUsed")),
        integers(column("gasPrice"), optional=True),
        integers(pc.fill_null(column("type"), "0x0")),
        integers(column("maxPriorityFeePerGas"), optional=True),
        integers(column("maxFeePerGas"), optional=True),
        # Before Byzantium a receipt told a state root, not a status: null.
        pc.equal(receipt("status"), "0x1"),
        n_bytes,
        n_zero,
        pc.subtract(n_bytes, n_zero),
        constant(chain_id, len(chunk.transactions)),
    ]


def _logs(chunk: Chunk, chain_id: int) -> list[Any]:
    column = chunk.logs.field
    data = binary(column("data"))
    return [
        integers(column("blockNumber")),
        integers(column("transactionIndex")),
        integers(column("logIndex")),
        binary(column("transactionHash")),
        binary(column("address")),
        *(binary(nth(column("topics"), index), optional=True) for index in range(4)),
        data,
        sizes(data)[0],
        constant(chain_id, len(chunk.logs)),
    ]


_BUILDERS = {"blocks": _blocks, "transactions": _transactions, "logs": _logs}
