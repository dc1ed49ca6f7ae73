"""Decode ABI values of all rows of a batch together into Arrow arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from trace_etl.dag.abi import AbiType, ArrayOf, Elementary, TupleOf
from trace_etl.spark.abi import numbers
from trace_etl.spark.abi.words import Reason, Words

_Array = Any


def arrow_type(kind: AbiType) -> Any:
    """Return the Arrow type of a value, in a column or nested in an array or tuple."""
    if isinstance(kind, ArrayOf):
        return pa.list_(arrow_type(kind.item))
    if isinstance(kind, TupleOf):
        fields = zip(kind.names, map(arrow_type, kind.items), strict=True)
        return pa.struct(list(fields))
    if kind.kind in ("uint", "int"):
        return _find_number_type(kind)
    simple = {"bool": pa.bool_(), "string": pa.string()}
    return simple.get(kind.kind, pa.binary())


def is_wide(kind: AbiType) -> bool:
    """Whether a value becomes three columns: binary, string and double."""
    return isinstance(kind, Elementary) and arrow_type(kind) == numbers.WIDE


def decode_values(kind: AbiType, words: Words, at: _Array, rows: _Array) -> _Array:
    """Decode one value of type `kind` per position in `at`; `rows` holds the row of each one."""
    if isinstance(kind, ArrayOf):
        return _decode_array(kind, words, at, rows)
    if isinstance(kind, TupleOf):
        children = decode_members(kind.items, words, at, rows)
        return pa.StructArray.from_arrays(children, fields=list(arrow_type(kind)))
    if kind.kind in ("bytes", "string"):
        return _decode_bytes(kind.kind == "string", words, at, rows)
    return _decode_static(kind, words, at, rows)


def decode_members(
    kinds: Sequence[AbiType], words: Words, at: _Array, rows: _Array
) -> list[_Array]:
    """Decode the members of the tuples at `at`: static ones in the head, dynamic ones after it."""
    head_end = at + sum(kind.head_size for kind in kinds)
    columns: list[_Array] = []
    head = at
    for kind in kinds:
        position = _follow_offsets(words, head, at, head_end, rows) if kind.is_dynamic else head
        columns.append(decode_values(kind, words, position, rows))
        head = head + kind.head_size
    return columns


def decode_arguments(kinds: Sequence[AbiType], words: Words) -> list[_Array]:
    """Decode each row as a tuple of arguments; `words` records the argument that a row fails at."""
    rows, columns = np.arange(len(words.starts)), list[_Array]()
    head_end = words.starts + sum(kind.head_size for kind in kinds)
    head = words.starts
    for words.parameter, kind in enumerate(kinds):
        position = head
        if kind.is_dynamic:
            position = _follow_offsets(words, head, words.starts, head_end, rows)
        columns.append(decode_values(kind, words, position, rows))
        head = head + kind.head_size
    return columns


def _follow_offsets(
    words: Words, at: _Array, base: _Array, head_end: _Array, rows: _Array
) -> _Array:
    """Return the positions that the offsets at `at` point to: after the head, inside the row."""
    target = base + words.read_sizes(at, rows, Reason.OFFSET)
    outside = (target < head_end) | (target >= words.ends[rows])
    if outside.any():
        words.mark_failed(rows[outside], Reason.OFFSET)
    return target


def _decode_array(kind: ArrayOf, words: Words, at: _Array, rows: _Array) -> _Array:
    if kind.length is None:
        lengths, at = words.read_sizes(at, rows, Reason.SHORT), at + 32
    else:
        lengths = np.full(len(at), kind.length, np.int64)
    lengths = _limit_lengths(kind, lengths, words, at, rows)
    offsets = np.zeros(len(at) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    within = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], lengths)
    base, owner = np.repeat(at, lengths), np.repeat(rows, lengths)
    position = base + within * kind.item.head_size
    if kind.item.is_dynamic:
        head_end = base + np.repeat(lengths, lengths) * 32
        position = _follow_offsets(words, position, base, head_end, owner)
    values = decode_values(kind.item, words, position, owner)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _limit_lengths(
    kind: ArrayOf, lengths: _Array, words: Words, at: _Array, rows: _Array
) -> _Array:
    """Mark rows whose array is longer than their data as failed, and set these lengths to 0."""
    short = at + lengths * kind.item.head_size > words.ends[rows]
    if short.any():
        words.mark_failed(rows[short], Reason.SHORT)
    return _limit_totals(lengths, 32, words, rows)


def _limit_totals(amounts: _Array, size: int, words: Words, rows: _Array) -> _Array:
    """Mark rows whose values at this depth need more bytes than the row has; set them to 0.

    Without this limit a small log could expand to gigabytes: many offsets may point to the same
    bytes.
    """
    amounts = np.where(words.errors[rows] > 0, 0, amounts)
    too_many = np.bincount(rows, amounts, len(words.ends)) * size > words.ends - words.starts
    if too_many.any():
        words.mark_failed(np.flatnonzero(too_many), Reason.TOO_MANY)
        amounts = np.where(too_many[rows], 0, amounts)
    return amounts


def _decode_bytes(is_text: bool, words: Words, at: _Array, rows: _Array) -> _Array:
    """Decode `bytes` or `string`: a length, the bytes, and zeros up to a multiple of 32 bytes."""
    lengths = words.read_sizes(at, rows, Reason.SHORT)
    padded = (lengths + 31) // 32 * 32
    short = at + 32 + padded > words.ends[rows]
    if short.any():
        words.mark_failed(rows[short], Reason.SHORT)
    padded = _limit_totals(padded, 1, words, rows)
    lengths = np.minimum(lengths, padded)
    padding, ends = words.read_bytes(at + 32 + lengths, padded - lengths)
    dirty = np.diff(np.concatenate([[0], np.cumsum(padding != 0)])[ends]) > 0
    if dirty.any():
        words.mark_failed(rows[dirty], Reason.PADDING)
    content, offsets = words.read_bytes(at + 32, lengths)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content)]
    values = pa.Array.from_buffers(pa.binary(), len(at), buffers)
    return _decode_texts(values, words, rows) if is_text else values


def _decode_texts(values: _Array, words: Words, rows: _Array) -> _Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [_decode_text(value) for value in values.to_pylist()]
        broken = np.array([text is None for text in texts])
        words.mark_failed(rows[broken], Reason.UTF8)
        return pa.array([text or "" for text in texts], pa.string())


def _decode_text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _decode_static(kind: Elementary, words: Words, at: _Array, rows: _Array) -> _Array:
    content = words.read_words(at, rows)
    _check_padding(kind, content, words, rows)
    if kind.kind == "bool":
        return pa.array(content[:, 31] != 0)
    if kind.kind == "address":
        return numbers.to_binary(content[:, 12:])
    if kind.kind == "fixed_bytes":
        return numbers.to_binary(content[:, : kind.bits // 8])
    signed = kind.kind == "int"
    if numbers.is_long(kind.bits, signed=signed):
        return numbers.to_longs(content)
    if kind.bits <= numbers.DECIMAL_BITS:
        return numbers.to_decimals(content, kind.bits)
    wide = numbers.to_wide(content, signed=signed)
    return pa.StructArray.from_arrays(wide, fields=list(numbers.WIDE))


def _find_number_type(kind: Elementary) -> Any:
    if numbers.is_long(kind.bits, signed=kind.kind == "int"):
        return pa.int64()
    is_decimal = kind.bits <= numbers.DECIMAL_BITS
    return numbers.decimal_type(kind.bits) if is_decimal else numbers.WIDE


def _check_padding(kind: Elementary, content: _Array, words: Words, rows: _Array) -> None:
    size = kind.bits // 8
    if kind.kind == "fixed_bytes":
        wrong = (content[:, size:] != 0).any(axis=1)
    elif kind.kind == "int" and size < 32:
        sign = np.where(content[:, 32 - size] >= 0x80, 0xFF, 0).astype(np.uint8)
        wrong = (content[:, : 32 - size] != sign[:, None]).any(axis=1)
    else:
        wrong = (content[:, : 32 - size] != 0).any(axis=1) if size < 32 else np.zeros(0, np.bool_)
    if wrong.any():
        words.mark_failed(rows[wrong], Reason.PADDING)
    if kind.kind == "bool" and (content[:, 31] > 1).any():
        words.mark_failed(rows[content[:, 31] > 1], Reason.BOOL)
