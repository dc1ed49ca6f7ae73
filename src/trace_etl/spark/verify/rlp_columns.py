"""Encode columns of hexadecimal text as RLP, without Python code per row.

Every function returns a binary column whose rows are RLP items. The oracle of the tests is `rlp`.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trace_etl.proof import native
from trace_etl.spark.evm.columns import parse_binary, parse_fixed, parse_minimal_bytes

_Array = Any  # pyarrow ships no types
_STRING, _LIST = 0x80, 0xC0


def make_head(size: int, kind: int) -> bytes:
    """Return the head of a string (0x80) or a list (0xC0) of this many bytes."""
    if size < 56:
        return bytes([kind + size])
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([kind + 55 + len(length)]) + length


# Nearly all strings and lists of a block are shorter than this, so their heads are kept.
_TABLE_SIZE = 4096


@cache
def _make_head_table(kind: int) -> _Array:
    """Return the heads of all short strings or lists, by size."""
    return pa.array([make_head(size, kind) for size in range(_TABLE_SIZE)], pa.binary())


def encode_hashes(texts: _Array, *, length: int) -> _Array:
    """Encode values of one fixed length, such as addresses or hashes."""
    if native.kernels and (pair := native.kernels.encode_hashes(native.pass_column(texts), length)):
        return native.make_binary(len(texts), pair)
    return parse_fixed(texts, length=length, prefix=_STRING + length)


def encode_data(texts: _Array, *, optional: bool = False) -> _Array:
    """Encode bytes of any length; null is the empty string if `optional`."""
    if native.kernels and (pair := native.kernels.encode_data(native.pass_column(texts), optional)):
        return native.make_binary(len(texts), pair)
    values = parse_binary(texts, optional=optional)
    return encode_bytes(pc.fill_null(values, b"") if optional else values)


def encode_quantities(texts: _Array, *, optional: bool = False) -> _Array:
    """Encode numbers of any size; null is zero if `optional`."""
    if native.kernels and (
        pair := native.kernels.encode_quantities(native.pass_column(texts), optional)
    ):
        return native.make_binary(len(texts), pair)
    return encode_bytes(parse_minimal_bytes(texts, optional=optional))


def encode_bytes(values: _Array) -> _Array:
    """Encode a binary column without nulls."""
    offsets, data = _read_buffers(values)
    sizes = np.diff(offsets)
    heads = _make_heads(sizes, _STRING)
    single = np.flatnonzero(sizes == 1)
    if len(single):
        is_itself = single[data[offsets[single]] < 0x80]
        plain = np.zeros(len(sizes), np.bool_)
        plain[is_itself] = True
        heads = pc.if_else(pa.array(plain), pa.scalar(b"", pa.binary()), heads)
    return join([heads, values])


def encode_lists(items: _Array, offsets: Any) -> _Array:
    """Encode one list per row: `offsets` are the borders of its consecutive encoded items."""
    if native.kernels:
        borders = np.ascontiguousarray(offsets, np.int64)
        if pair := native.kernels.encode_lists(native.pass_column(items), borders):
            return native.make_binary(len(borders) - 1, pair)
    borders, _ = _read_buffers(items)
    return _encode_payloads(_cut_bytes(items, borders[np.asarray(offsets)]))


def encode_records(items: Sequence[_Array], prefix: _Array | None = None) -> _Array:
    """Encode one list per row from its encoded items, one column each, after a prefix of the row.

    Scalars count for every row.
    """
    if native.kernels:
        count = next(len(item) for item in items if not isinstance(item, pa.Scalar))
        parts = [_pass_part(item) for item in items]
        before = b"" if prefix is None else _pass_part(prefix)
        if pair := native.kernels.encode_records(before, parts, count):
            return native.make_binary(count, pair)
    payloads = _encode_payloads(join(items))
    return payloads if prefix is None else join([prefix, payloads])


def _pass_part(part: _Array) -> Any:
    return part.as_py() if isinstance(part, pa.Scalar) else native.pass_column(part)


def _encode_payloads(payloads: _Array) -> _Array:
    return join([_make_heads(_measure(payloads), _LIST), payloads])


def join(columns: Sequence[_Array]) -> _Array:
    """Concatenate the values of each row. Scalars count for every row."""
    return pc.binary_join_element_wise(*columns, b"")


def split(values: _Array) -> list[bytes]:
    """Return the values of a binary column without nulls, faster than `to_pylist`."""
    offsets, data = _read_buffers(values)
    content = data.tobytes()
    borders = offsets.tolist()
    return [content[a:b] for a, b in pairwise(borders)]


def _make_heads(sizes: Any, kind: int) -> _Array:
    if len(sizes) and int(sizes.max()) < _TABLE_SIZE:
        return _make_head_table(kind).take(pa.array(sizes))
    lengths, positions = np.unique(sizes, return_inverse=True)
    heads = pa.array([make_head(int(length), kind) for length in lengths], pa.binary())
    return heads.take(pa.array(positions))


def _measure(values: _Array) -> Any:
    return np.diff(_read_buffers(values)[0])


def _read_buffers(values: _Array) -> tuple[Any, Any]:
    """Return offsets from 0 and the bytes of a binary column."""
    if len(values) == 0:
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(values) + 1, values.offset * 4)
    data = np.frombuffer(data_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], data


def _cut_bytes(values: _Array, borders: Any) -> _Array:
    """Return the bytes of a column, cut at other borders."""
    _, data = _read_buffers(values)
    offsets = pa.py_buffer(np.ascontiguousarray(borders, np.int32))
    return pa.Array.from_buffers(pa.binary(), len(borders) - 1, [None, offsets, pa.py_buffer(data)])
