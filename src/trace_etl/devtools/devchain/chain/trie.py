"""The root of a Merkle-Patricia trie over a block's list of transactions or receipts."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from typing import TypeAlias

from trace_etl.devtools.devchain.chain import rlp
from trace_etl.devtools.devchain.chain.keccak import keccak

# Keys are rlp(index), so a trie's shape depends on the number of values alone: it is worked out
# once, as a function that encodes the node from the values.
Node: TypeAlias = Callable[[Sequence[bytes]], bytes]
# The nibbles that are left of a key, and the index it stands for. No key is a prefix of another.
Key: TypeAlias = tuple[bytes, int]

_NOTHING = rlp.encode(b"")
EMPTY_ROOT = keccak(_NOTHING)


def ordered_root(values: Sequence[bytes]) -> bytes:
    """The root of the trie that maps rlp(index) to each value."""
    return keccak(_shape(len(values))(values)) if values else EMPTY_ROOT


@cache
def _shape(count: int) -> Node:
    return _node(sorted((_nibbles(rlp.encode(index)), index) for index in range(count)))


def _nibbles(key: bytes) -> bytes:
    return bytes(half for byte in key for half in (byte >> 4, byte & 15))


def _node(keys: Sequence[Key]) -> Node:
    if len(keys) == 1:
        return _leaf(*keys[0])
    shared = _shared_prefix(keys[0][0], keys[-1][0])
    if not shared:
        return _branch(keys)
    return _extension(keys[0][0][:shared], _branch([(key[shared:], index) for key, index in keys]))


def _leaf(nibbles: bytes, index: int) -> Node:
    path = rlp.encode_bytes(_hex_prefix(nibbles, leaf=True))
    return lambda values: rlp.encode_list((path, rlp.encode_bytes(values[index])))


def _extension(nibbles: bytes, child: Node) -> Node:
    path = rlp.encode_bytes(_hex_prefix(nibbles, leaf=False))
    return lambda values: rlp.encode_list((path, _reference(child(values))))


def _branch(keys: Sequence[Key]) -> Node:
    children = [
        (first, _node([(key[1:], index) for key, index in group]))
        for first, group in groupby(keys, lambda key: key[0][0])
    ]

    def encode(values: Sequence[bytes]) -> bytes:
        slots = [_NOTHING] * 17
        for nibble, child in children:
            slots[nibble] = _reference(child(values))
        return rlp.encode_list(slots)

    return encode


def _reference(node: bytes) -> bytes:
    """A node shorter than a hash stands for itself."""
    return node if len(node) < 32 else b"\xa0" + keccak(node)


def _shared_prefix(first: bytes, last: bytes) -> int:
    """How many nibbles a sorted run has in common: those its two ends have."""
    pairs = enumerate(zip(first, last, strict=False))
    return next(position for position, (left, right) in pairs if left != right)


def _hex_prefix(nibbles: bytes, *, leaf: bool) -> bytes:
    odd = len(nibbles) % 2
    flags = bytes([(2 if leaf else 0) + odd]) + (b"" if odd else b"\x00")
    padded = flags + nibbles
    return bytes(padded[i] << 4 | padded[i + 1] for i in range(0, len(padded), 2))
