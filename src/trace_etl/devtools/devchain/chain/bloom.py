"""The 2048-bit Bloom filter of a block's log addresses and topics, as one integer."""

from collections.abc import Iterable
from functools import lru_cache

from trace_etl.spark.verify.keccak import keccak


@lru_cache(maxsize=1 << 16)
def bits(value: bytes) -> int:
    """Return the three bits that a value sets."""
    digest = keccak(value)
    low = 0x7FF
    return (
        1 << (int.from_bytes(digest[0:2], "big") & low)
        | 1 << (int.from_bytes(digest[2:4], "big") & low)
        | 1 << (int.from_bytes(digest[4:6], "big") & low)
    )


def union(blooms: Iterable[int]) -> int:
    """Combine the bits of several filters."""
    total = 0
    for bloom in blooms:
        total |= bloom
    return total


def to_bytes(bloom: int) -> bytes:
    """Return the filter as it is encoded in headers and receipts."""
    return bloom.to_bytes(256, "big")
