"""Hexadecimal text to Arrow columns, whole columns at a time."""

from binascii import Error as HexError
from binascii import unhexlify
from collections.abc import Sequence
from itertools import repeat
from typing import Any, cast

import numpy as np
import pyarrow as pa

_Array = Any  # pyarrow ships no types


def binary(texts: Sequence[str | None]) -> _Array:
    """`0x…` of any even length to binary; None stays null."""
    present = [text or "0x" for text in texts] if None in texts else cast("Sequence[str]", texts)
    lengths = np.fromiter(map(len, present), np.int64, len(present)) // 2 - 1
    offsets = np.zeros(len(present) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    try:
        data = unhexlify("".join(present).replace("0x", ""))
    except HexError as error:
        raise ValueError(f"not hexadecimal: {error}") from error
    if len(data) != offsets[-1]:
        raise ValueError("hexadecimal data without its 0x")
    return pa.Array.from_buffers(
        pa.binary(), len(present), [_validity(texts), pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def integers(texts: Sequence[str | None]) -> _Array:
    """Quantities to int64; None stays null. Raises OverflowError beyond 63 bits."""
    if None in texts:
        return pa.array([None if text is None else int(text, 16) for text in texts], pa.int64())
    return pa.array(np.fromiter(map(int, cast("Any", texts), repeat(16)), np.int64, len(texts)))


def wide_integers(texts: Sequence[str]) -> tuple[_Array, _Array, _Array]:
    """256-bit quantities as 32-byte big-endian binary, decimal string and double."""
    numbers = [int(text, 16) for text in texts]
    data = b"".join([number.to_bytes(32, "big") for number in numbers])
    offsets = np.arange(0, 32 * len(numbers) + 1, 32, dtype=np.int32)
    return (
        pa.Array.from_buffers(
            pa.binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        ),
        pa.array([str(number) for number in numbers], pa.string()),
        pa.array(np.fromiter(map(float, numbers), np.float64, len(numbers))),
    )


def constant(value: int, count: int) -> _Array:
    return pa.array(np.full(count, value, np.int64))


def lengths(column: _Array) -> tuple[_Array, _Array]:
    """Of a binary column without nulls: bytes per value, and zero bytes per value."""
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1)
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8, int(offsets[-1]))
    zeros = np.zeros(len(data) + 1, np.int64)
    np.cumsum(data == 0, out=zeros[1:])
    return pa.array(np.diff(offsets).astype(np.int64)), pa.array(np.diff(zeros[offsets]))


def _validity(texts: Sequence[str | None]) -> Any:
    if None not in texts:
        return None
    present = np.fromiter((text is not None for text in texts), np.bool_, len(texts))
    return pa.py_buffer(np.packbits(present, bitorder="little"))
