"""The tables of a chain: cryo's column names, types every reader agrees on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from trace_etl.pipeline.errors import ChainMismatch
from trace_etl.pipeline.evm.columns import binary, constant, integers, lengths, wide_integers

Json = dict[str, Any]
_Batch = Any  # pyarrow ships no types

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

    blocks: Sequence[Json]
    receipts: Sequence[Json] = field(default_factory=list[Json])
    logs: Sequence[Json] = field(default_factory=list[Json])


def build(table: str, chunk: Chunk, chain_id: int) -> _Batch:
    """One table of a chunk. Raises ChainMismatch when a value is not what its column holds."""
    try:
        columns = _BUILDERS[table](chunk, chain_id)
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[table])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        first, last = (int(chunk.blocks[index]["number"], 16) for index in (0, -1))
        raise ChainMismatch(
            f"{table} of blocks {first} to {last}: {type(error).__name__}: {error}"
        ) from error


def _blocks(chunk: Chunk, chain_id: int) -> list[Any]:
    rows = chunk.blocks
    return [
        binary([row["hash"] for row in rows]),
        binary([row["miner"] for row in rows]),
        integers([row["number"] for row in rows]),
        integers([row["gasUsed"] for row in rows]),
        binary([row["extraData"] for row in rows]),
        integers([row["timestamp"] for row in rows]),
        integers([row.get("baseFeePerGas") for row in rows]),
        constant(chain_id, len(rows)),
    ]


def _transactions(chunk: Chunk, chain_id: int) -> list[Any]:
    rows = [row for block in chunk.blocks for row in block["transactions"]]
    receipts = chunk.receipts
    data = binary([row["input"] for row in rows])
    n_bytes, n_zero = lengths(data)
    return [
        integers([row["blockNumber"] for row in rows]),
        integers([row["transactionIndex"] for row in rows]),
        binary([row["hash"] for row in rows]),
        integers([row["nonce"] for row in rows]),
        binary([row["from"] for row in rows]),
        binary([row["to"] for row in rows]),
        *wide_integers([row["value"] for row in rows]),
        data,
        integers([row["gas"] for row in rows]),
        integers([receipt["gasUsed"] for receipt in receipts]),
        integers([row.get("gasPrice") for row in rows]),
        integers([row.get("type", "0x0") for row in rows]),
        integers([row.get("maxPriorityFeePerGas") for row in rows]),
        integers([row.get("maxFeePerGas") for row in rows]),
        # Before Byzantium a receipt told a state root, not a status.
        pa.array([_succeeded(receipt.get("status")) for receipt in receipts], _FLAG),
        n_bytes,
        n_zero,
        pa.array(n_bytes.to_numpy() - n_zero.to_numpy()),
        constant(chain_id, len(rows)),
    ]


def _logs(chunk: Chunk, chain_id: int) -> list[Any]:
    rows = chunk.logs
    topics = [row["topics"] for row in rows]
    data = binary([row["data"] for row in rows])
    return [
        integers([row["blockNumber"] for row in rows]),
        integers([row["transactionIndex"] for row in rows]),
        integers([row["logIndex"] for row in rows]),
        binary([row["transactionHash"] for row in rows]),
        binary([row["address"] for row in rows]),
        *(binary([_nth(topic, index) for topic in topics]) for index in range(4)),
        data,
        lengths(data)[0],
        constant(chain_id, len(rows)),
    ]


def _nth(topics: list[str], index: int) -> str | None:
    return topics[index] if index < len(topics) else None


def _succeeded(status: str | None) -> bool | None:
    return None if status is None else status == "0x1"


_BUILDERS = {"blocks": _blocks, "transactions": _transactions, "logs": _logs}
