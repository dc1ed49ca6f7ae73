"""Values by their ABI type, all rows of a batch at once, into Arrow arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from trace_etl.dag.abi import AbiType, ArrayOf, Elementary, TupleOf
from trace_etl.spark.abi import numbers
from trace_etl.spark.abi.words import Reason, Words

_Array = Any


def arrow_type(kind: AbiType) -> Any:
    """The Arrow type of a value inside an array, a tuple, or a column of its own."""
    if isinstance(kind, ArrayOf):
        return pa.list_(arrow_type(kind.item))
    if isinstance(kind, TupleOf):
        fields = zip(kind.names, map(arrow_type, kind.items), strict=True)
        return pa.struct(list(fields))
    if kind.kind in ("uint", "int"):
        return _number_type(kind)
    simple = {"bool": pa.bool_(), "string": pa.string()}
    return simple.get(kind.kind, pa.binary())


def is_wide(kind: AbiType) -> bool:
    """Whether a value takes binary, string and double to tell."""
    return isinstance(kind, Elementary) and arrow_type(kind) == numbers.WIDE


def decode(kind: AbiType, words: Words, at: _Array, rows: _Array) -> _Array:
    """The values of that type at these positions, each of the row beside it."""
    if isinstance(kind, ArrayOf):
        return _array(kind, words, at, rows)
    if isinstance(kind, TupleOf):
        children = members(kind.items, words, at, rows)
        return pa.StructArray.from_arrays(children, fields=list(arrow_type(kind)))
    if kind.kind in ("bytes", "string"):
        return _stretches(kind.kind == "string", words, at, rows)
    return _static(kind, words, at, rows)


def members(kinds: Sequence[AbiType], words: Words, at: _Array, rows: _Array) -> list[_Array]:
    """The members of a tuple that begins there: static ones in its head, others behind it."""
    head_end = at + sum(kind.head_size for kind in kinds)
    found: list[_Array] = []
    place = at
    for kind in kinds:
        where = _follow(words, place, at, head_end, rows) if kind.is_dynamic else place
        found.append(decode(kind, words, where, rows))
        place = place + kind.head_size
    return found


def arguments(kinds: Sequence[AbiType], words: Words) -> list[_Array]:
    """The members of the tuple that every row is; notes which of them a row fails at."""
    rows, found = np.arange(len(words.starts)), list[_Array]()
    head_end = words.starts + sum(kind.head_size for kind in kinds)
    place = words.starts
    for words.part, kind in enumerate(kinds):
        where = _follow(words, place, words.starts, head_end, rows) if kind.is_dynamic else place
        found.append(decode(kind, words, where, rows))
        place = place + kind.head_size
    return found


def _follow(words: Words, place: _Array, base: _Array, head_end: _Array, rows: _Array) -> _Array:
    """Where the offsets at these places lead. They must lead behind the head, into the data."""
    to = base + words.sizes(place, rows, Reason.OFFSET)
    astray = (to < head_end) | (to >= words.ends[rows])
    if astray.any():
        words.fail(rows[astray], Reason.OFFSET)
    return to


def _array(kind: ArrayOf, words: Words, at: _Array, rows: _Array) -> _Array:
    if kind.length is None:
        lengths, at = words.sizes(at, rows, Reason.SHORT), at + 32
    else:
        lengths = np.full(len(at), kind.length, np.int64)
    lengths = _bounded(kind, lengths, words, at, rows)
    offsets = np.zeros(len(at) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    within = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], lengths)
    base, owner = np.repeat(at, lengths), np.repeat(rows, lengths)
    place = base + within * kind.item.head_size
    if kind.item.is_dynamic:
        head_end = base + np.repeat(lengths, lengths) * 32
        place = _follow(words, place, base, head_end, owner)
    values = decode(kind.item, words, place, owner)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _bounded(kind: ArrayOf, lengths: _Array, words: Words, at: _Array, rows: _Array) -> _Array:
    """Lengths that the data have room for; others mark their row and become 0."""
    short = at + lengths * kind.item.head_size > words.ends[rows]
    if short.any():
        words.fail(rows[short], Reason.SHORT)
    return _uncrowded(lengths, 32, words, rows)


def _uncrowded(amounts: _Array, size: int, words: Words, rows: _Array) -> _Array:
    """Offsets can lead to the same bytes many times over, so that little unfolds to very much:
    all that a row holds at one depth together must fit into the row."""
    amounts = np.where(words.errors[rows] > 0, 0, amounts)
    crowded = np.bincount(rows, amounts, len(words.ends)) * size > words.ends - words.starts
    if crowded.any():
        words.fail(np.flatnonzero(crowded), Reason.TOO_MANY)
        amounts = np.where(crowded[rows], 0, amounts)
    return amounts


def _stretches(is_text: bool, words: Words, at: _Array, rows: _Array) -> _Array:
    """`bytes` and `string`: a length, then so many bytes, then zeros up to a whole word."""
    lengths = words.sizes(at, rows, Reason.SHORT)
    padded = (lengths + 31) // 32 * 32
    short = at + 32 + padded > words.ends[rows]
    if short.any():
        words.fail(rows[short], Reason.SHORT)
    padded = _uncrowded(padded, 1, words, rows)
    lengths = np.minimum(lengths, padded)
    padding, ends = words.take(at + 32 + lengths, padded - lengths)
    dirty = np.diff(np.concatenate([[0], np.cumsum(padding != 0)])[ends]) > 0
    if dirty.any():
        words.fail(rows[dirty], Reason.PADDING)
    content, offsets = words.take(at + 32, lengths)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content)]
    found = pa.Array.from_buffers(pa.binary(), len(at), buffers)
    return _texts(found, words, rows) if is_text else found


def _texts(found: _Array, words: Words, rows: _Array) -> _Array:
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [_text(value) for value in found.to_pylist()]
        broken = np.array([text is None for text in texts])
        words.fail(rows[broken], Reason.UTF8)
        return pa.array([text or "" for text in texts], pa.string())


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _static(kind: Elementary, words: Words, at: _Array, rows: _Array) -> _Array:
    found = words.at(at, rows)
    _check_padding(kind, found, words, rows)
    if kind.kind == "bool":
        return pa.array(found[:, 31] != 0)
    if kind.kind == "address":
        return numbers.fixed_binary(found[:, 12:])
    if kind.kind == "fixed_bytes":
        return numbers.fixed_binary(found[:, : kind.bits // 8])
    signed = kind.kind == "int"
    if numbers.is_long(kind.bits, signed=signed):
        return numbers.longs(found)
    if kind.bits <= numbers.DECIMAL_BITS:
        return numbers.decimals(found, kind.bits)
    return pa.StructArray.from_arrays(numbers.wide(found, signed=signed), fields=list(numbers.WIDE))


def _number_type(kind: Elementary) -> Any:
    if numbers.is_long(kind.bits, signed=kind.kind == "int"):
        return pa.int64()
    is_decimal = kind.bits <= numbers.DECIMAL_BITS
    return numbers.decimal_type(kind.bits) if is_decimal else numbers.WIDE


def _check_padding(kind: Elementary, found: _Array, words: Words, rows: _Array) -> None:
    size = kind.bits // 8
    if kind.kind == "fixed_bytes":
        wrong = (found[:, size:] != 0).any(axis=1)
    elif kind.kind == "int" and size < 32:
        sign = np.where(found[:, 32 - size] >= 0x80, 0xFF, 0).astype(np.uint8)
        wrong = (found[:, : 32 - size] != sign[:, None]).any(axis=1)
    else:
        wrong = (found[:, : 32 - size] != 0).any(axis=1) if size < 32 else np.zeros(0, np.bool_)
    if wrong.any():
        words.fail(rows[wrong], Reason.PADDING)
    if kind.kind == "bool" and (found[:, 31] > 1).any():
        words.fail(rows[found[:, 31] > 1], Reason.BOOL)
