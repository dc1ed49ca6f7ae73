"""Columns of hexadecimal text to columns of values. Arrow in, Arrow out; no Python per row."""

from binascii import Error as HexError
from binascii import unhexlify
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_Array = Any  # pyarrow ships no types
_MISSING = "a value is missing"
_BARE = "hexadecimal data without its 0x"
_ZERO, _X = ord("0"), ord("x")


def binary(texts: _Array, *, optional: bool = False) -> _Array:
    """`0x…` of any even length to binary; null stays null if it may. Raises ValueError."""
    data, starts, lengths = _text(texts, optional)
    sizes = np.maximum(lengths - 2, 0)
    if np.any(sizes % 2):
        raise ValueError("hexadecimal data with half a byte")
    try:
        content = unhexlify(_digits(data, starts, lengths))
    except HexError as error:
        raise ValueError(f"not hexadecimal: {error}") from error
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(sizes // 2, out=offsets[1:])
    return _binary(len(texts), offsets, content, _validity(texts))


def integers(texts: _Array, *, optional: bool = False) -> _Array:
    """Quantities to int64. Raises ValueError, or OverflowError past 63 bits."""
    data, starts, lengths = _text(texts, optional)
    if np.any(lengths == 2):
        raise ValueError("a quantity without digits")
    if lengths.max(initial=0) > 18:
        raise OverflowError("a quantity of more than 64 bits")
    values = _runs(data, lengths)
    if values is None:
        values = _numbers(data, starts, lengths)
    if np.any(values >> np.uint64(63)):
        raise OverflowError("a quantity of more than 63 bits")
    buffer = pa.py_buffer(values.astype(np.int64))
    return pa.Array.from_buffers(pa.int64(), len(texts), [_validity(texts), buffer])


def wide_integers(texts: _Array) -> tuple[_Array, _Array, _Array]:
    """256-bit quantities as 32-byte big-endian binary, decimal string and double."""
    data, starts, lengths = _text(texts, optional=False)
    if np.any(lengths == 2):
        raise ValueError("a quantity without digits")
    is_wide = lengths > 18
    wide = [int(text, 16) for text in texts.filter(pa.array(is_wide)).to_pylist()]
    narrow = ~is_wide
    # Most are of 64 bits at most; the few others go one by one.
    numbers = _numbers(*_chosen(data, starts, lengths, narrow) if wide else (data, starts, lengths))
    exact = np.zeros((len(texts), 32), np.uint8)
    exact[narrow, 24:] = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    if wide:
        content = b"".join([number.to_bytes(32, "big") for number in wide])
        exact[is_wide] = np.frombuffer(content, np.uint8).reshape(-1, 32)
    doubles = np.empty(len(texts), np.float64)
    doubles[narrow] = numbers.astype(np.float64)
    doubles[is_wide] = [float(number) for number in wide]
    decimals = pa.array(numbers).cast(pa.string())
    if wide:
        order = np.argsort(np.concatenate([np.flatnonzero(narrow), np.flatnonzero(is_wide)]))
        others = pa.array([str(number) for number in wide], pa.string())
        decimals = pa.concat_arrays([decimals, others]).take(pa.array(order))
    offsets = np.arange(0, 32 * len(texts) + 1, 32, dtype=np.int32)
    return _binary(len(texts), offsets, exact.tobytes(), None), decimals, pa.array(doubles)


def constant(value: int, count: int) -> _Array:
    return pa.array(np.full(count, value, np.int64))


def sizes(column: _Array) -> tuple[_Array, _Array]:
    """Of a binary column of ours without nulls: bytes per value, and zero bytes per value."""
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1)
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8, int(offsets[-1]))
    zeros = np.zeros(len(data) + 1, np.int64)
    np.cumsum(data == 0, out=zeros[1:])
    return pa.array(np.diff(offsets).astype(np.int64)), pa.array(np.diff(zeros[offsets]))


def nth(lists: _Array, index: int) -> _Array:
    """The element at that place of every list; null where the list is shorter."""
    offsets = np.asarray(lists.offsets)
    missing = np.diff(offsets) <= index
    return lists.values.take(pa.array(offsets[:-1] + index, mask=missing))


def repeated(column: _Array, counts: Any) -> _Array:
    """Every value as often as its count says."""
    return column.take(pa.array(np.repeat(np.arange(len(column)), counts)))


def joined(lists: _Array, separator: str) -> _Array:
    """The numbers of every list as one text."""
    texts = pa.ListArray.from_arrays(lists.offsets, lists.values.cast(pa.string()))
    return pc.binary_join(texts, separator)


def counts(lists: _Array) -> Any:
    """How long each list is. Raises ValueError if one is missing."""
    if lists.null_count:
        raise ValueError(_MISSING)
    return np.diff(np.asarray(lists.offsets))


def _text(texts: _Array, optional: bool) -> tuple[Any, Any, Any]:
    """The characters of a string column, and where each text starts and how long it is."""
    if texts.null_count and not optional:
        raise ValueError(_MISSING)
    if len(texts) == 0:
        return np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64)
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(texts) + 1, texts.offset * 4)
    offsets = offsets.astype(np.int64)
    data = np.frombuffer(data_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    present = starts[np.asarray(texts.is_valid())] if texts.null_count else starts
    long_enough = lengths >= 2
    if np.count_nonzero(long_enough) != len(present):
        raise ValueError(_BARE)
    if np.any(data[present] != _ZERO) or np.any(data[present + 1] != _X):
        raise ValueError(_BARE)
    return data, starts, lengths


def _runs(data: Any, lengths: Any) -> Any:
    """The numbers of a column whose neighbours are mostly alike, like a block's; else None."""
    count, length = len(lengths), int(lengths[0]) if len(lengths) else 0
    if not length or np.any(lengths != length):
        return None
    rows = data.reshape(count, length)
    is_first = np.ones(count, np.bool_)
    np.any(rows[1:] != rows[:-1], axis=1, out=is_first[1:])
    firsts = rows[is_first]
    if 4 * len(firsts) > count:
        return None
    lengths = np.full(len(firsts), length)
    values = _numbers(firsts.reshape(-1), np.cumsum(lengths) - length, lengths)
    return values[np.cumsum(is_first) - 1]


def _numbers(data: Any, starts: Any, lengths: Any) -> Any:
    """Quantities of at most 64 bits; zero where there is none. Raises ValueError."""
    sizes = np.maximum(lengths - 2, 0)
    digits = np.frombuffer(_digits(data, starts, lengths), np.uint8)
    # Each to the right of sixteen places.
    padded = np.full(16 * len(lengths), _ZERO, np.uint8)
    ends = 16 * np.arange(1, len(lengths) + 1)
    padded[np.arange(len(digits)) + np.repeat(ends - np.cumsum(sizes), sizes)] = digits
    try:
        return np.frombuffer(unhexlify(padded.tobytes()), ">u8").astype(np.uint64)
    except HexError as error:
        raise ValueError("a quantity that is not hexadecimal") from error


def _chosen(data: Any, starts: Any, lengths: Any, which: Any) -> tuple[Any, Any, Any]:
    """The same of some of the texts."""
    kept = data[np.repeat(which, lengths)]
    lengths = lengths[which]
    return kept, np.cumsum(lengths) - lengths, lengths


def _digits(data: Any, starts: Any, lengths: Any) -> bytes:
    """What is left of the texts without their 0x."""
    is_there = lengths > 0
    longest = int(lengths.max(initial=0))
    if longest and np.array_equal(lengths, is_there * longest):
        return data.reshape(-1, longest)[:, 2:].tobytes()
    kept = np.ones(len(data), np.bool_)
    present = starts[is_there]
    kept[present] = kept[present + 1] = False
    return data[kept].tobytes()


def _binary(count: int, offsets: Any, content: bytes, validity: Any) -> _Array:
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _validity(texts: _Array) -> Any:
    if not texts.null_count:
        return None
    return pa.py_buffer(np.packbits(np.asarray(texts.is_valid()), bitorder="little"))
