"""Recompute the hash of block headers, of every fork to Osaka."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from trace_etl.proof import native
from trace_etl.spark.evm.columns import split_texts
from trace_etl.spark.verify.keccak import keccak_rows
from trace_etl.spark.verify.rlp_columns import (
    encode_data,
    encode_hashes,
    encode_quantities,
    encode_records,
    make_head,
    split,
)

_Array = Any  # pyarrow ships no types
_STRING, _LIST = 0x80, 0xC0


def _make_fixed_encoder(length: int) -> Callable[[str], bytes]:
    head = bytes([_STRING + length])

    def encode(text: str) -> bytes:
        value = bytes.fromhex(text[2:])
        if len(value) != length:
            raise ValueError(f"{len(value)} bytes instead of {length}")
        return head + value

    return encode


def _encode_data(text: str) -> bytes:
    return _encode_bytes(bytes.fromhex(text[2:]))


def _encode_quantity(text: str) -> bytes:
    number = int(text, 16)
    return _encode_bytes(number.to_bytes((number.bit_length() + 7) // 8, "big"))


def _encode_bytes(value: bytes) -> bytes:
    return value if len(value) == 1 and value < b"\x80" else make_head(len(value), _STRING) + value


class _Kind(NamedTuple):
    """How a field is encoded: one value, or the column of many headers."""

    one: Callable[[str], bytes]
    column: Callable[[_Array], _Array]


_HASH = _Kind(_make_fixed_encoder(32), partial(encode_hashes, length=32))
_ADDRESS = _Kind(_make_fixed_encoder(20), partial(encode_hashes, length=20))
_DATA = _Kind(_encode_data, encode_data)
_QUANTITY = _Kind(_encode_quantity, encode_quantities)
# In the order of the hash.
_FIELDS: tuple[tuple[str, _Kind], ...] = (
    ("parentHash", _HASH),
    ("sha3Uncles", _HASH),
    ("miner", _ADDRESS),
    ("stateRoot", _HASH),
    ("transactionsRoot", _HASH),
    ("receiptsRoot", _HASH),
    ("logsBloom", _DATA),
    ("difficulty", _QUANTITY),
    ("number", _QUANTITY),
    ("gasLimit", _QUANTITY),
    ("gasUsed", _QUANTITY),
    ("timestamp", _QUANTITY),
    ("extraData", _DATA),
    ("mixHash", _HASH),
    ("nonce", _DATA),
    ("baseFeePerGas", _QUANTITY),  # London
    ("withdrawalsRoot", _HASH),  # Shanghai
    ("blobGasUsed", _QUANTITY),  # Cancun
    ("excessBlobGas", _QUANTITY),
    ("parentBeaconBlockRoot", _HASH),
    ("requestsHash", _HASH),  # Prague
)
HEADER_FIELDS = tuple(name for name, _ in _FIELDS)
_REQUIRED = HEADER_FIELDS.index("baseFeePerGas")


def encode_headers(blocks: _Array) -> list[bytes]:
    """Encode headers as RLP lists. Raises ValueError that names a missing or wrong field."""
    return split(_encode_rows(blocks))


def hash_headers(blocks: _Array) -> list[bytes]:
    """Compute the hash of each header from its fields. Raises ValueError."""
    return keccak_rows(_encode_rows(blocks))


def _encode_rows(blocks: _Array) -> _Array:
    if native.kernels and (columns := _encode_columns(blocks)):
        return encode_records(columns)
    columns = [split_texts(blocks.field(name)) for name in HEADER_FIELDS]
    rows = [_encode_header(values) for values in zip(*columns, strict=True)]
    return pa.array(rows, pa.binary())


def encode_list(items: Iterable[bytes]) -> bytes:
    """Encode a list of encoded items."""
    payload = b"".join(items)
    return make_head(len(payload), _LIST) + payload


def _encode_columns(blocks: _Array) -> list[_Array] | None:
    """Encode the fields of many headers at once; None if a value is missing or wrong."""
    columns: list[_Array] = []
    for position, (name, kind) in enumerate(_FIELDS):
        texts = blocks.field(name)
        if position >= _REQUIRED and texts.null_count == len(texts):
            continue  # before the fork that adds the field
        try:
            columns.append(kind.column(texts))
        except ValueError:
            return None
    return columns


def _encode_header(values: tuple[str | None, ...]) -> bytes:
    parts: list[bytes] = []
    for position, (text, (name, kind)) in enumerate(zip(values, _FIELDS, strict=True)):
        if text is None:
            if position < _REQUIRED:
                raise ValueError(f"{name}: a value is missing in a header")
            continue  # before the fork that adds the field
        try:
            parts.append(kind.one(text))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return encode_list(parts)
