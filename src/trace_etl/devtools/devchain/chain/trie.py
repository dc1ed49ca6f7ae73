"""Compute the Merkle-Patricia trie root of a block's transactions or receipts."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from typing import TypeAlias

from trace_etl.devtools.devchain.chain import rlp
from trace_etl.spark.verify.keccak import keccak

# Keys are rlp(index), so the shape of a trie depends only on the number of values. It is computed
# once per number, as a function that encodes the root node from the values.
Node: TypeAlias = Callable[[Sequence[bytes]], bytes]
# The remaining nibbles of a key, and the index of its value. No key is a prefix of another.
Key: TypeAlias = tuple[bytes, int]

_EMPTY = rlp.encode(b"")
EMPTY_ROOT = keccak(_EMPTY)


def ordered_root(values: Sequence[bytes]) -> bytes:
    """Compute the root of the trie that maps rlp(index) to each value."""
    return keccak(_build_shape(len(values))(values)) if values else EMPTY_ROOT


@cache
def _build_shape(count: int) -> Node:
    return _build_node(sorted((_split_nibbles(rlp.encode(index)), index) for index in range(count)))


def _split_nibbles(key: bytes) -> bytes:
    return bytes(half for byte in key for half in (byte >> 4, byte & 15))


def _build_node(keys: Sequence[Key]) -> Node:
    if len(keys) == 1:
        return _build_leaf(*keys[0])
    shared = _count_shared_nibbles(keys[0][0], keys[-1][0])
    if not shared:
        return _build_branch(keys)
    return _build_extension(
        keys[0][0][:shared], _build_branch([(key[shared:], index) for key, index in keys])
    )


def _build_leaf(nibbles: bytes, index: int) -> Node:
    path = rlp.encode_bytes(_encode_path(nibbles, leaf=True))
    return lambda values: rlp.encode_list((path, rlp.encode_bytes(values[index])))


def _build_extension(nibbles: bytes, child: Node) -> Node:
    path = rlp.encode_bytes(_encode_path(nibbles, leaf=False))
    return lambda values: rlp.encode_list((path, _encode_reference(child(values))))


def _build_branch(keys: Sequence[Key]) -> Node:
    children = [
        (first, _build_node([(key[1:], index) for key, index in group]))
        for first, group in groupby(keys, lambda key: key[0][0])
    ]

    def encode(values: Sequence[bytes]) -> bytes:
        slots = [_EMPTY] * 17
        for nibble, child in children:
            slots[nibble] = _encode_reference(child(values))
        return rlp.encode_list(slots)

    return encode


def _encode_reference(node: bytes) -> bytes:
    """Return the hash of a node, or the node itself if it is shorter than a hash."""
    return node if len(node) < 32 else b"\xa0" + keccak(node)


def _count_shared_nibbles(first: bytes, last: bytes) -> int:
    """Count the nibbles that sorted keys share; comparing the first and last key is enough."""
    pairs = enumerate(zip(first, last, strict=False))
    return next(position for position, (left, right) in pairs if left != right)


def _encode_path(nibbles: bytes, *, leaf: bool) -> bytes:
    odd = len(nibbles) % 2
    flags = bytes([(2 if leaf else 0) + odd]) + (b"" if odd else b"\x00")
    padded = flags + nibbles
    return bytes(padded[i] << 4 | padded[i + 1] for i in range(0, len(padded), 2))
