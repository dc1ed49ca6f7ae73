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
_NIBBLES = np.full(256, 255, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_NIBBLES[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


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
    sizes = np.maximum(lengths - 2, 0)
    ends = starts + lengths
    values = np.zeros(len(texts), np.uint64)
    longest = int(sizes.max(initial=0))
    if np.any(lengths == 2):
        raise ValueError("a quantity without digits")
    if longest > 16:
        raise OverflowError("a quantity of more than 64 bits")
    for place in range(longest):
        holds = sizes > place
        nibbles = _NIBBLES[data[ends[holds] - 1 - place]]
        if np.any(nibbles == 255):
            raise ValueError("a quantity that is not hexadecimal")
        values[holds] |= nibbles.astype(np.uint64) << np.uint64(4 * place)
    if np.any(values >> np.uint64(63)):
        raise OverflowError("a quantity of more than 63 bits")
    buffer = pa.py_buffer(values.astype(np.int64))
    return pa.Array.from_buffers(pa.int64(), len(texts), [_validity(texts), buffer])


def wide_integers(texts: _Array) -> tuple[_Array, _Array, _Array]:
    """256-bit quantities as 32-byte big-endian binary, decimal string and double."""
    if texts.null_count:
        raise ValueError(_MISSING)
    numbers = [int(text, 16) for text in texts.to_pylist()]
    content = b"".join([number.to_bytes(32, "big") for number in numbers])
    offsets = np.arange(0, 32 * len(numbers) + 1, 32, dtype=np.int32)
    return (
        _binary(len(numbers), offsets, content, None),
        pa.array([str(number) for number in numbers], pa.string()),
        pa.array(np.fromiter(map(float, numbers), np.float64, len(numbers))),
    )


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


def _digits(data: Any, starts: Any, lengths: Any) -> bytes:
    """What is left of the texts without their 0x."""
    if len(lengths) and lengths[0] and np.all(lengths == lengths[0]):
        return data.reshape(len(lengths), -1)[:, 2:].tobytes()
    kept = np.ones(len(data), np.bool_)
    present = starts[lengths > 0]
    kept[present] = kept[present + 1] = False
    return data[kept].tobytes()


def _binary(count: int, offsets: Any, content: bytes, validity: Any) -> _Array:
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _validity(texts: _Array) -> Any:
    if not texts.null_count:
        return None
    return pa.py_buffer(np.packbits(np.asarray(texts.is_valid()), bitorder="little"))
