"""The parts of a node's JSON that we read, as Arrow types. Everything in it is text."""

from typing import Any

import pyarrow as pa


def _texts(names: str) -> list[tuple[str, Any]]:
    return [(name, pa.string()) for name in names.split()]


_TRANSACTION: Any = pa.struct(
    _texts(
        "hash blockHash blockNumber transactionIndex nonce from to value input gas gasPrice type "
        "maxPriorityFeePerGas maxFeePerGas"
    )
)
_HEADER = _texts("hash parentHash number miner gasUsed extraData timestamp baseFeePerGas logsBloom")
LOG: Any = pa.struct(
    [
        *_texts("address data blockHash blockNumber transactionHash transactionIndex logIndex"),
        ("topics", pa.list_(pa.string())),
    ]
)
HEADER: Any = pa.struct(_HEADER)
BLOCK: Any = pa.struct([*_HEADER, ("transactions", pa.list_(_TRANSACTION))])
RECEIPT: Any = pa.struct(
    [*_texts("transactionHash blockHash gasUsed status"), ("logs", pa.list_(LOG))]
)
RECEIPTS: Any = pa.list_(RECEIPT)
LOGS: Any = pa.list_(LOG)
