"""Compute the roots of tries that map rlp(0), rlp(1), … to values: transactions, receipts.

The keys are known, so the shape of a trie depends only on the number of values. It is computed once
per number. A root then takes one hash per value, and a few for the branches above them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from trace_etl.proof import native
from trace_etl.spark.verify.keccak import cut_hashes, keccak
from trace_etl.spark.verify.rlp_columns import encode_bytes, encode_records, make_head, split

_Array = Any  # pyarrow ships no types
_EMPTY = b"\x80"
EMPTY_ROOT = keccak(_EMPTY)
# The remaining nibbles of a key, and the index of its value. No key is a prefix of another.
_Key: TypeAlias = tuple[bytes, int]
_Node: TypeAlias = "int | _Branch"
"""A leaf, as the index of its value, or a branch."""


@dataclass(frozen=True)
class _Branch:
    """A branch, below an extension if `path` is not empty."""

    path: bytes
    children: tuple[tuple[int, _Node], ...]


@dataclass(frozen=True)
class _Shape:
    """The encoded path of each leaf, and the root node."""

    paths: _Array
    root: _Node


def compute_roots(values: _Array, counts: Any) -> list[bytes]:
    """Compute one root per block; `counts` is the number of values of each block."""
    if native.kernels:
        sizes = np.ascontiguousarray(counts, np.int64)
        digests = native.kernels.compute_roots(native.pass_column(values), sizes)
        if digests is not None:
            return cut_hashes(digests)
    shapes = [_build_shape(int(count)) if count else None for count in counts]
    paths = [shape.paths for shape in shapes if shape]
    if not paths:
        return [EMPTY_ROOT] * len(counts)
    nodes = encode_records([pa.concat_arrays(paths), encode_bytes(values)])
    leaves: list[bytes] = split(nodes)
    # A node of less than 32 bytes is embedded in its parent, a longer one is referenced by its hash.
    references = [b"\xa0" + keccak(leaf) if len(leaf) > 31 else leaf for leaf in leaves]
    starts: list[int] = np.concatenate([[0], np.cumsum(counts)]).tolist()
    roots: list[bytes] = []
    for shape, start, end in zip(shapes, starts, starts[1:], strict=False):
        if shape is None:
            roots.append(EMPTY_ROOT)
        elif isinstance(shape.root, int):
            roots.append(keccak(leaves[start]))
        else:
            roots.append(keccak(_encode_branch(shape.root, references[start:end])))
    return roots


def _encode_branch(branch: _Branch, references: Sequence[bytes]) -> bytes:
    slots = [_EMPTY] * 17
    for nibble, child in branch.children:
        slots[nibble] = (
            references[child]
            if isinstance(child, int)
            else _refer(_encode_branch(child, references))
        )
    node = _encode_list(b"".join(slots))
    return _encode_list(branch.path + _refer(node)) if branch.path else node


def _refer(node: bytes) -> bytes:
    return node if len(node) < 32 else b"\xa0" + keccak(node)


def _encode_list(payload: bytes) -> bytes:
    return make_head(len(payload), 0xC0) + payload


@lru_cache(4096)
def _build_shape(count: int) -> _Shape:
    paths = [b""] * count
    keys = sorted((_split_nibbles(_encode_index(index)), index) for index in range(count))
    root = _build_node(keys, paths)
    return _Shape(pa.array(paths, pa.binary()), root)


def _build_node(keys: Sequence[_Key], paths: list[bytes]) -> _Node:
    if len(keys) == 1:
        nibbles, index = keys[0]
        paths[index] = _encode_path(nibbles, is_leaf=True)
        return index
    shared = _count_shared_nibbles(keys[0][0], keys[-1][0])
    path = _encode_path(keys[0][0][:shared], is_leaf=False) if shared else b""
    below = [(nibbles[shared:], index) for nibbles, index in keys]
    children = tuple(
        (first, _build_node([(nibbles[1:], index) for nibbles, index in group], paths))
        for first, group in groupby(below, lambda key: key[0][0])
    )
    return _Branch(path, children)


def _encode_index(index: int) -> bytes:
    """Encode a key: rlp(index)."""
    if 0 < index < 0x80:
        return bytes([index])
    content = index.to_bytes((index.bit_length() + 7) // 8, "big")
    return bytes([0x80 + len(content)]) + content


def _split_nibbles(key: bytes) -> bytes:
    return bytes(half for byte in key for half in (byte >> 4, byte & 15))


def _count_shared_nibbles(first: bytes, last: bytes) -> int:
    """Count the nibbles that sorted keys share; comparing the first and last key is enough."""
    pairs = enumerate(zip(first, last, strict=False))
    return next(position for position, (left, right) in pairs if left != right)


def _encode_path(nibbles: bytes, *, is_leaf: bool) -> bytes:
    """Encode a path with its flags, as an RLP string."""
    odd = len(nibbles) % 2
    padded = bytes([2 * is_leaf + odd]) + (b"" if odd else b"\x00") + nibbles
    content = bytes(padded[i] << 4 | padded[i + 1] for i in range(0, len(padded), 2))
    return content if len(content) == 1 else bytes([0x80 + len(content)]) + content
