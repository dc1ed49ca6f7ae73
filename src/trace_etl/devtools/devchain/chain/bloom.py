"""The 2048-bit Bloom filter of a block's log addresses and topics, kept as one integer."""

from collections.abc import Iterable
from functools import lru_cache

from trace_etl.devtools.devchain.chain.keccak import keccak


@lru_cache(maxsize=1 << 16)
def bits(value: bytes) -> int:
    """The three bits a value sets."""
    digest = keccak(value)
    low = 0x7FF
    return (
        1 << (int.from_bytes(digest[0:2], "big") & low)
        | 1 << (int.from_bytes(digest[2:4], "big") & low)
        | 1 << (int.from_bytes(digest[4:6], "big") & low)
    )


def union(blooms: Iterable[int]) -> int:
    """All bits of several filters."""
    total = 0
    for bloom in blooms:
        total |= bloom
    return total


def to_bytes(bloom: int) -> bytes:
    """The filter as a header and a receipt carry it."""
    return bloom.to_bytes(256, "big")
