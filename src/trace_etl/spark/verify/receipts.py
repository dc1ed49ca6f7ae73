"""Encode receipts as they are hashed, with a status or, before Byzantium, with a state root."""

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trace_etl.spark.verify.rlp_columns import (
    encode_data,
    encode_hashes,
    encode_lists,
    encode_quantities,
    encode_records,
)
from trace_etl.spark.verify.transactions import read_types

_Array = Any  # pyarrow ships no types
_BLOOM_HEAD = b"\xb9\x01\x00"
_DEPOSIT = 0x7E


def encode_receipts(receipts: _Array, log_offsets: Any, logs: _Array, blooms: Any) -> _Array:
    """Encode receipts; `blooms` are computed from the logs. Raises ValueError."""
    types = read_types(receipts)
    outcomes = _encode_outcomes(receipts)
    columns = [
        outcomes,
        encode_quantities(receipts.field("cumulativeGasUsed")),
        pa.scalar(_BLOOM_HEAD, pa.binary()),
        _convert_to_binary(blooms),
        encode_lists(encode_logs(logs), log_offsets),
    ]
    if np.any(types == _DEPOSIT):
        columns += _encode_deposit_fields(receipts, types)
    return encode_records(columns, _make_prefixes().take(pa.array(types)))


def encode_logs(logs: _Array) -> _Array:
    """Encode logs as parts of their receipts."""
    topics = logs.field("topics")
    offsets = np.asarray(topics.offsets)
    topic_lists = encode_lists(
        encode_hashes(topics.flatten(), length=32), offsets - (offsets[0] if len(offsets) else 0)
    )
    addresses = encode_hashes(logs.field("address"), length=20)
    return encode_records([addresses, topic_lists, encode_data(logs.field("data"))])


def _encode_outcomes(receipts: _Array) -> _Array:
    status, root = receipts.field("status"), receipts.field("root")
    if not status.null_count:
        return encode_quantities(status)
    has_status = status.is_valid()
    if pc.any(pc.and_(status.is_null(), root.is_null())).as_py():
        raise ValueError("a receipt has neither a status nor a root")
    roots = encode_data(pc.fill_null(root, "0x"))
    return pc.if_else(has_status, encode_quantities(pc.fill_null(status, "0x0")), roots)


def _encode_deposit_fields(receipts: _Array, types: Any) -> list[_Array]:
    """Since Canyon, receipts of deposits also hash their nonce and version."""
    versions = receipts.field("depositReceiptVersion")
    has_version = pc.and_(versions.is_valid(), pa.array(types == _DEPOSIT))
    names = ("depositNonce", "depositReceiptVersion")
    encoded = [encode_quantities(receipts.field(name), optional=True) for name in names]
    return [pc.if_else(has_version, column, b"") for column in encoded]


def _convert_to_binary(blooms: Any) -> _Array:
    offsets = np.arange(0, 256 * len(blooms) + 1, 256, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(blooms))]
    return pa.Array.from_buffers(pa.binary(), len(blooms), buffers)


@cache
def _make_prefixes() -> _Array:
    """Return the byte before a receipt, by its type; legacy ones have none."""
    return pa.array([bytes([kind]) if kind else b"" for kind in range(256)], pa.binary())
