"""Arrow types of the node's JSON fields that we read. JSON-RPC encodes nearly all as text."""

from typing import Any

import pyarrow as pa


def _make_text_fields(names: str) -> list[tuple[str, Any]]:
    return [(name, pa.string()) for name in names.split()]


_TRANSACTION = _make_text_fields(
    "hash blockHash blockNumber transactionIndex nonce from to value input gas gasPrice type "
    "maxPriorityFeePerGas maxFeePerGas"
)
_ACCESS: Any = pa.struct([("address", pa.string()), ("storageKeys", pa.list_(pa.string()))])
_AUTHORIZATION: Any = pa.struct(_make_text_fields("chainId address nonce yParity v r s"))
# What the hash of a transaction covers beyond the columns above.
_SIGNED = [
    *_make_text_fields("chainId v r s yParity maxFeePerBlobGas sourceHash mint"),
    ("accessList", pa.list_(_ACCESS)),
    ("authorizationList", pa.list_(_AUTHORIZATION)),
    ("blobVersionedHashes", pa.list_(pa.string())),
    ("isSystemTx", pa.bool_()),
]
HEADER: Any = pa.struct(
    _make_text_fields(
        "hash parentHash sha3Uncles miner stateRoot transactionsRoot receiptsRoot logsBloom "
        "difficulty number gasLimit gasUsed timestamp extraData mixHash nonce baseFeePerGas "
        "withdrawalsRoot blobGasUsed excessBlobGas parentBeaconBlockRoot requestsHash "
        "totalDifficulty size"
    )
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
_RECEIPT = _make_text_fields(
    "transactionHash transactionIndex blockHash gasUsed cumulativeGasUsed status root type"
)
# What else a receipt of a transaction has: prices, the sender, and fields of other chains.
_RECEIPT_DETAILS = _make_text_fields(
    "from to contractAddress effectiveGasPrice blobGasUsed blobGasPrice depositNonce "
    "depositReceiptVersion l1Fee l1GasPrice l1GasUsed l1FeeScalar l1BlobBaseFee l1BaseFeeScalar "
    "l1BlobBaseFeeScalar gasUsedForL1 l1BlockNumber"
)
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


def block(
    *,
    transactions: bool = False,
    hashes: bool = False,
    withdrawals: bool = False,
    uncles: bool = False,
    is_signed: bool = False,
) -> Any:
    """Return the type of a block, optionally with transactions or their hashes, and withdrawals."""
    parts = list(HEADER)
    if transactions:
        fields = [*_TRANSACTION, *(_SIGNED if is_signed else ())]
        parts.append(pa.field("transactions", pa.list_(pa.struct(fields))))
    elif hashes:
        parts.append(pa.field("transactions", pa.list_(pa.string())))
    if withdrawals:
        parts.append(pa.field("withdrawals", pa.list_(_WITHDRAWAL)))
    if uncles:
        parts.append(pa.field("uncles", pa.list_(pa.string())))
    return pa.struct(parts)


def receipt(*, is_detailed: bool = False) -> Any:
    """Return the type of a receipt, optionally with everything that nodes report."""
    return pa.struct(
        [*_RECEIPT, *(_RECEIPT_DETAILS if is_detailed else ()), ("logs", pa.list_(LOG))]
    )
