"""Encode RLP (Recursive Length Prefix), the encoding of Ethereum."""

from collections.abc import Sequence
from typing import TypeAlias

Item: TypeAlias = bytes | int | Sequence["Item"]


def _encode_head(short: int, size: int) -> bytes:
    if size < 56:
        return bytes([short + size])
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([short + 55 + len(length)]) + length


# Nearly all strings and lists of a block are shorter than this, so their heads are precomputed.
_TABLE_SIZE = 4_096
_BYTES_HEADS = [_encode_head(0x80, size) for size in range(_TABLE_SIZE)]
_LIST_HEADS = [_encode_head(0xC0, size) for size in range(_TABLE_SIZE)]


def encode(item: Item) -> bytes:
    """Encode bytes, a non-negative integer, or a sequence of those. Raises OverflowError if < 0."""
    if isinstance(item, bytes):
        return encode_bytes(item)
    if isinstance(item, int):
        # Zero is the empty string; leading zeros are never written.
        return encode_bytes(item.to_bytes((item.bit_length() + 7) // 8, "big"))
    return encode_list([encode(member) for member in item])


def encode_bytes(value: bytes) -> bytes:
    size = len(value)
    if size == 1 and value < b"\x80":
        return value
    return (_BYTES_HEADS[size] if size < _TABLE_SIZE else _encode_head(0x80, size)) + value


def encode_list(encoded: Sequence[bytes]) -> bytes:
    """Wrap members that are already encoded into one list."""
    payload = b"".join(encoded)
    size = len(payload)
    return (_LIST_HEADS[size] if size < _TABLE_SIZE else _encode_head(0xC0, size)) + payload
