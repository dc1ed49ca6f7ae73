"""Encode Arrow columns as the bytes of a binary COPY, without a Python loop over rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from trace_etl.dag.column_types import BY_ARROW

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
_BASE, _NEGATIVE, _UINT32 = 10_000, 0x4000, 0xFFFF_FFFF
_HEAD, _EMPTY_HEAD = 20, 12  # bytes of an array's header: with elements, and without
_Array = Any  # pyarrow and numpy arrays


@dataclass(frozen=True)
class _Field:
    """One encoded column: the values' bytes, the length of each value, and which ones are null."""

    content: _Array
    lengths: _Array
    nulls: _Array | None


def encode_rows(batch: Any) -> memoryview:
    """Encode all rows of a record batch. Raises TypeError for an unknown type."""
    count, fields = batch.num_rows, [_encode_column(column) for column in batch.columns]
    sizes = 2 + 4 * len(fields) + sum(field.lengths for field in fields)
    ends = np.cumsum(np.broadcast_to(sizes, count))
    out: _Array = np.zeros(int(ends[-1]) if count else 0, np.uint8)
    at = ends - sizes
    _write_fixed(out, at, np.full(count, len(fields), ">i2").view(np.uint8), 2)
    at = at + 2
    for field in fields:
        at = _write_field(out, at, field)
    return memoryview(out)


def _write_field(out: _Array, at: _Array, field: _Field) -> _Array:
    """Write a column's lengths and values at offsets `at`. Returns the offsets of the next column."""
    lengths = field.lengths.astype(">i4")
    if field.nulls is not None:
        lengths[field.nulls] = -1
    _write_fixed(out, at, lengths.view(np.uint8), 4)
    at = at + 4
    widths = field.lengths
    if len(widths) and widths[0] and np.all(widths == widths[0]):
        _write_fixed(out, at, field.content, int(widths[0]))
    else:
        # The offset of a byte is its position in the content plus the shift of its row.
        shift = at - (np.cumsum(widths) - widths)
        out[np.repeat(shift, widths) + np.arange(len(field.content))] = field.content
    return at + widths


def _write_fixed(out: _Array, at: _Array, content: _Array, width: int) -> None:
    """Write values of one width at offsets `at`."""
    if len(at):
        out[at[:, None] + np.arange(width)] = content.reshape(len(at), width)


def _encode_column(column: _Array) -> _Field:
    nulls = np.asarray(column.is_null()) if column.null_count else None
    if kinds.is_binary(column.type) or kinds.is_string(column.type):
        return _encode_variable(column, nulls)
    if kinds.is_list(column.type):
        return _encode_array(column, nulls)
    content = (
        _encode_decimals(column) if kinds.is_decimal128(column.type) else _encode_numbers(column)
    )
    lengths = np.full(len(column), content.shape[1], np.int64)
    if nulls is not None:
        content, lengths = content[~nulls], np.where(nulls, 0, lengths)
    return _Field(np.ascontiguousarray(content).reshape(-1), lengths, nulls)


def _encode_numbers(column: _Array) -> _Array:
    """Encode values of one width, as one row of bytes each. Raises TypeError for an unknown type."""
    kind = BY_ARROW.get(str(column.type))
    if kind is None or kind.copy_format is None:
        raise TypeError(f"Postgres data cannot store a column of type {column.type}")
    epoch = kind.copy_epoch
    if epoch:
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    filled = pc.fill_null(column, pa.scalar(0, pa.int8()).cast(column.type))
    values = (np.asarray(filled) - epoch if epoch else np.asarray(filled)).astype(kind.copy_format)
    return values.view(np.uint8).reshape(len(column), values.itemsize)


def _encode_decimals(column: _Array) -> _Array:
    """Encode decimals as Postgres numerics: digits in base 10,000, aligned at the decimal point."""
    scale, count = column.type.scale, len(column)
    fraction, whole = -(-scale // 4), -(-(column.type.precision - scale) // 4)
    stored = np.frombuffer(column.buffers()[1], "<u4").reshape(-1, 4)
    limbs = stored[column.offset : column.offset + count].astype(np.uint64)
    negative = limbs[:, 3] >= 1 << 31
    limbs[negative] = _negate(limbs[negative])
    out = np.zeros((count, 4 + fraction + whole), ">i2")
    out[:, 0], out[:, 1], out[:, 3] = fraction + whole, whole - 1, scale
    out[:, 2] = np.where(negative, _NEGATIVE, 0)
    last = 3 + fraction + whole
    if scale % 4:
        out[:, last] = _divide(limbs, 10 ** (scale % 4)) * 10 ** (4 - scale % 4)
        last -= 1
    for index in range(last, 3, -1):
        out[:, index] = _divide(limbs, _BASE)
    return out.view(np.uint8)


def _negate(limbs: _Array) -> _Array:
    """Return the two's complement, computed 32 bits at a time."""
    flipped, carry = limbs ^ np.uint64(_UINT32), np.ones(len(limbs), np.uint64)
    for n in range(4):
        total = flipped[:, n] + carry
        flipped[:, n], carry = total & np.uint64(_UINT32), total >> np.uint64(32)
    return flipped


def _divide(limbs: _Array, divisor: int) -> _Array:
    """Divide in place, from the highest 32 bits down. Returns the remainder."""
    remainder = np.zeros(len(limbs), np.uint64)
    for n in (3, 2, 1, 0):
        dividend = (remainder << np.uint64(32)) | limbs[:, n]
        limbs[:, n], remainder = dividend // np.uint64(divisor), dividend % np.uint64(divisor)
    return remainder.astype(np.int64)


def _encode_array(column: _Array, nulls: _Array | None) -> _Field:
    """Encode one-dimensional arrays: a header, then the length and the bytes of each element."""
    items = column.flatten()
    field = _encode_column(items)
    counts = np.asarray(pc.fill_null(pc.list_value_length(column), 0)).astype(np.int64)
    ends = np.cumsum(4 + field.lengths)
    elements: _Array = np.zeros(int(ends[-1]) if len(items) else 0, np.uint8)
    _write_field(elements, ends - field.lengths - 4, field)
    # The bytes of the elements of each row, from the end offset of the last element.
    row_ends = np.concatenate([[0], ends])[np.cumsum(counts)]
    sizes = np.diff(row_ends, prepend=0)
    lengths = np.where(counts == 0, _EMPTY_HEAD, _HEAD + sizes)
    if nulls is not None:
        lengths[nulls] = 0
    starts = np.cumsum(lengths) - lengths
    out: _Array = np.zeros(int(lengths.sum()), np.uint8)
    not_null = np.ones(len(column), bool) if nulls is None else ~nulls
    head = np.zeros((len(column), 5), ">i4")
    head[:, 0], head[:, 2], head[:, 3], head[:, 4] = (
        counts > 0,
        _find_element_oid(items.type),
        counts,
        1,
    )
    head = head.view(np.uint8).reshape(len(column), _HEAD)
    filled = counts > 0
    _write_fixed(
        out, starts[not_null & ~filled], head[not_null & ~filled, :_EMPTY_HEAD], _EMPTY_HEAD
    )
    _write_fixed(out, starts[filled], head[filled], _HEAD)
    shift = starts + _HEAD - (row_ends - sizes)
    out[np.repeat(shift, sizes) + np.arange(len(elements))] = elements
    return _Field(out, lengths, nulls)


def _find_element_oid(kind: _Array) -> int:
    return BY_ARROW["decimal128" if kinds.is_decimal128(kind) else str(kind)].oid


def _encode_variable(column: _Array, nulls: _Array | None) -> _Field:
    _, offsets_buffer, data = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(column) + 1, column.offset * 4)
    offsets = offsets.astype(np.int64)
    content = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    lengths = np.diff(offsets)
    if nulls is not None and np.any(lengths[nulls]):
        # Arrow allows bytes under a null: skip them.
        content = content[np.repeat(~nulls, lengths)]
        lengths = np.where(nulls, 0, lengths)
    return _Field(content, lengths, nulls)
