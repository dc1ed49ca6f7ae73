"""Recompute the hash of block headers, of every fork to Osaka."""

from collections.abc import Callable, Iterable
from typing import Any

from trace_etl.spark.evm.columns import split_texts
from trace_etl.spark.verify.keccak import keccak
from trace_etl.spark.verify.rlp_columns import make_head

_Array = Any  # pyarrow ships no types
_STRING, _LIST = 0x80, 0xC0


def _fixed(length: int) -> Callable[[str], bytes]:
    head = bytes([_STRING + length])

    def encode(text: str) -> bytes:
        value = bytes.fromhex(text[2:])
        if len(value) != length:
            raise ValueError(f"{len(value)} bytes instead of {length}")
        return head + value

    return encode


def _data(text: str) -> bytes:
    return _encode_bytes(bytes.fromhex(text[2:]))


def _quantity(text: str) -> bytes:
    number = int(text, 16)
    return _encode_bytes(number.to_bytes((number.bit_length() + 7) // 8, "big"))


def _encode_bytes(value: bytes) -> bytes:
    return value if len(value) == 1 and value < b"\x80" else make_head(len(value), _STRING) + value


_HASH = _fixed(32)
# In the order of the hash.
_FIELDS: tuple[tuple[str, Callable[[str], bytes]], ...] = (
    ("parentHash", _HASH),
    ("sha3Uncles", _HASH),
    ("miner", _fixed(20)),
    ("stateRoot", _HASH),
    ("transactionsRoot", _HASH),
    ("receiptsRoot", _HASH),
    ("logsBloom", _data),
    ("difficulty", _quantity),
    ("number", _quantity),
    ("gasLimit", _quantity),
    ("gasUsed", _quantity),
    ("timestamp", _quantity),
    ("extraData", _data),
    ("mixHash", _HASH),
    ("nonce", _data),
    ("baseFeePerGas", _quantity),  # London
    ("withdrawalsRoot", _HASH),  # Shanghai
    ("blobGasUsed", _quantity),  # Cancun
    ("excessBlobGas", _quantity),
    ("parentBeaconBlockRoot", _HASH),
    ("requestsHash", _HASH),  # Prague
)
HEADER_FIELDS = tuple(name for name, _ in _FIELDS)
_REQUIRED = HEADER_FIELDS.index("baseFeePerGas")


def encode_headers(blocks: _Array) -> list[bytes]:
    """Encode headers as RLP lists. Raises ValueError that names a missing or wrong field."""
    columns = [split_texts(blocks.field(name)) for name in HEADER_FIELDS]
    return [_encode_header(values) for values in zip(*columns, strict=True)]


def hash_headers(blocks: _Array) -> list[bytes]:
    """Compute the hash of each header from its fields. Raises ValueError."""
    return [keccak(header) for header in encode_headers(blocks)]


def encode_list(items: Iterable[bytes]) -> bytes:
    """Encode a list of encoded items."""
    payload = b"".join(items)
    return make_head(len(payload), _LIST) + payload


def _encode_header(values: tuple[str | None, ...]) -> bytes:
    parts: list[bytes] = []
    for position, (text, (name, encode)) in enumerate(zip(values, _FIELDS, strict=True)):
        if text is None:
            if position < _REQUIRED:
                raise ValueError(f"{name}: a value is missing in a header")
            continue  # before the fork that adds the field
        try:
            parts.append(encode(text))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return encode_list(parts)
