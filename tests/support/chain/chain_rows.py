"""The rows expected from a chain, computed value by value from its JSON."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import orjson

from trace_etl.devtools.devchain import DevChain

Row = dict[str, Any]


def expected(chain: DevChain, start: int, end: int) -> dict[str, list[Row]]:
    chain.seal_to(end)
    pairs: list[tuple[Row, list[Row]]] = []
    for number in range(start, end + 1):
        block = chain.block(number)
        assert block is not None
        pairs.append((orjson.loads(block.full()), orjson.loads(block.all_receipts())))
    return rows_of(pairs, chain.chain_id)


def as_json(rows: Iterable[Row]) -> list[Row]:
    """Return rows as the Query Service writes them: bytes in hexadecimal, decimals as texts."""
    return [{name: _as_json(value) for name, value in row.items()} for row in rows]


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return str(value) if isinstance(value, Decimal) else value


def rows_of(pairs: Iterable[tuple[Row, list[Row]]], chain_id: int) -> dict[str, list[Row]]:
    """Compute the rows of blocks and their receipts, from any node."""
    blocks: list[Row] = []
    transactions: list[Row] = []
    logs: list[Row] = []
    for block, receipts in pairs:
        blocks.append(_block(block, chain_id))
        both = zip(block["transactions"], receipts, strict=True)
        transactions += [_transaction(tx, receipt, chain_id) for tx, receipt in both]
        logs += [_log(log, chain_id) for log in _logs(receipts)]
    return {"blocks": blocks, "transactions": transactions, "logs": logs}


def _logs(receipts: Iterable[Row]) -> Iterable[Row]:
    return (log for receipt in receipts for log in receipt["logs"])


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text[2:])


def _int(text: str | None) -> int | None:
    return None if text is None else int(text, 16)


def _block(block: Row, chain_id: int) -> Row:
    return {
        "block_hash": _bytes(block["hash"]),
        "author": _bytes(block["miner"]),
        "block_number": _int(block["number"]),
        "gas_used": _int(block["gasUsed"]),
        "extra_data": _bytes(block["extraData"]),
        "timestamp": _int(block["timestamp"]),
        "base_fee_per_gas": _int(block.get("baseFeePerGas")),
        "chain_id": chain_id,
    }


def _transaction(tx: Row, receipt: Row, chain_id: int) -> Row:
    value, data = int(tx["value"], 16), bytes.fromhex(tx["input"][2:])
    return {
        "block_number": _int(tx["blockNumber"]),
        "transaction_index": _int(tx["transactionIndex"]),
        "transaction_hash": _bytes(tx["hash"]),
        "nonce": _int(tx["nonce"]),
        "from_address": _bytes(tx["from"]),
        "to_address": _bytes(tx["to"]),
        "value_binary": value.to_bytes(32, "big"),
        "value_string": str(value),
        "value_f64": float(value),
        "input": data,
        "gas_limit": _int(tx["gas"]),
        "gas_used": _int(receipt["gasUsed"]),
        "gas_price": _int(tx["gasPrice"]),
        "transaction_type": _int(tx["type"]),
        "max_priority_fee_per_gas": _int(tx.get("maxPriorityFeePerGas")),
        "max_fee_per_gas": _int(tx.get("maxFeePerGas")),
        "success": receipt["status"] == "0x1",
        "n_input_bytes": len(data),
        "n_input_zero_bytes": data.count(0),
        "n_input_nonzero_bytes": len(data) - data.count(0),
        "chain_id": chain_id,
    }


def _log(log: Row, chain_id: int) -> Row:
    topics = [_bytes(topic) for topic in log["topics"]] + [None] * 4
    return {
        "block_number": _int(log["blockNumber"]),
        "transaction_index": _int(log["transactionIndex"]),
        "log_index": _int(log["logIndex"]),
        "transaction_hash": _bytes(log["transactionHash"]),
        "address": _bytes(log["address"]),
        "topic0": topics[0],
        "topic1": topics[1],
        "topic2": topics[2],
        "topic3": topics[3],
        "data": _bytes(log["data"]),
        "n_data_bytes": (len(log["data"]) - 2) // 2,
        "chain_id": chain_id,
    }
