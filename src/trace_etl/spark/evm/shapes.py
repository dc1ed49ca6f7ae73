"""Arrow types of the node's JSON fields that we read. JSON-RPC encodes nearly all as text."""

from typing import Any

import pyarrow as pa


def _make_text_fields(names: str) -> list[tuple[str, Any]]:
    return [(name, pa.string()) for name in names.split()]


_TRANSACTION: Any = pa.struct(
    _make_text_fields(
        "hash blockHash blockNumber transactionIndex nonce from to value input gas gasPrice type "
        "maxPriorityFeePerGas maxFeePerGas"
    )
)
_HEADER = _make_text_fields(
    "hash parentHash number miner gasUsed extraData timestamp baseFeePerGas logsBloom"
)
LOG: Any = pa.struct(
    [
        *_make_text_fields(
            "address data blockHash blockNumber transactionHash transactionIndex logIndex"
        ),
        ("topics", pa.list_(pa.string())),
    ]
)
_WITHDRAWAL: Any = pa.struct(_make_text_fields("index validatorIndex address amount"))
RECEIPT: Any = pa.struct(
    [*_make_text_fields("transactionHash blockHash gasUsed status"), ("logs", pa.list_(LOG))]
)
RECEIPTS: Any = pa.list_(RECEIPT)
LOGS: Any = pa.list_(LOG)
_ACTION = "from to value gas input callType init author rewardType address refundAddress balance"
TRACE: Any = pa.struct(
    [
        *_make_text_fields("blockHash transactionHash error type"),
        ("action", pa.struct(_make_text_fields(_ACTION))),
        ("result", pa.struct(_make_text_fields("gasUsed output code address"))),
        ("blockNumber", pa.int64()),
        ("transactionPosition", pa.int64()),
        ("subtraces", pa.int64()),
        ("traceAddress", pa.list_(pa.int64())),
    ]
)
TRACES: Any = pa.list_(TRACE)


def block(*, transactions: bool = False, hashes: bool = False, withdrawals: bool = False) -> Any:
    """Return the type of a block, optionally with transactions or their hashes, and withdrawals."""
    parts = list(_HEADER)
    if transactions or hashes:
        parts.append(("transactions", pa.list_(_TRANSACTION if transactions else pa.string())))
    if withdrawals:
        parts.append(("withdrawals", pa.list_(_WITHDRAWAL)))
    return pa.struct(parts)
