"""Convert 32-byte words to numbers: long, decimal, or binary + decimal string + double."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_Array = Any  # a numpy or pyarrow array; neither library types its elements
LONG_BITS = 63
DECIMAL_BITS = 120
WIDE = pa.struct([("binary", pa.binary()), ("string", pa.string()), ("f64", pa.float64())])
# A number below 2^252 has at most 76 digits, the precision of a 256-bit decimal.
_FITS_76_DIGITS = np.uint64(1 << 60)
_FITS_BELOW_ZERO = np.uint64((1 << 64) - (1 << 60))


def is_long(bits: int, *, signed: bool) -> bool:
    return bits <= LONG_BITS + signed


def decimal_type(bits: int) -> Any:
    """Return a decimal of 20 digits up to 64 bits, else of 38, the limit of most SQL engines."""
    return pa.decimal128(20 if bits <= 64 else 38, 0)


def to_longs(words: _Array) -> _Array:
    return pa.array(words.view(">u8")[:, 3].astype(np.uint64).view(np.int64))


def to_decimals(words: _Array, bits: int) -> _Array:
    little = np.ascontiguousarray(words[:, :15:-1])
    return pa.Array.from_buffers(decimal_type(bits), len(words), [None, pa.py_buffer(little)])


def to_wide(words: _Array, *, signed: bool) -> tuple[_Array, _Array, _Array]:
    """Return the 32 bytes unchanged, the decimal digits, and the nearest double."""
    texts = _convert_to_texts(words, signed=signed)
    return to_binary(words), texts, pc.cast(texts, pa.float64())


def to_binary(values: _Array) -> _Array:
    """Convert a matrix of bytes to a binary column, one value per row."""
    count, size = values.shape
    offsets = np.arange(0, count * size + 1, size or 1, dtype=np.int32)[: count + 1]
    content = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), content])


def _convert_to_texts(words: _Array, *, signed: bool) -> _Array:
    top = words.view(">u8")[:, 0].astype(np.uint64)
    fits = top < _FITS_76_DIGITS
    if signed:
        fits |= top >= _FITS_BELOW_ZERO
    if np.all(fits):
        return _format_small(words)
    texts = np.empty(len(words), object)
    texts[fits] = _format_small(words[fits]).to_numpy(zero_copy_only=False)
    texts[~fits] = _format_large(words[~fits], signed=signed)
    return pa.array(texts, pa.string())


def _format_small(words: _Array) -> _Array:
    little = pa.py_buffer(np.ascontiguousarray(words[:, ::-1]))
    numbers = pa.Array.from_buffers(pa.decimal256(76, 0), len(words), [None, little])
    return pc.cast(numbers, pa.string())


def _format_large(words: _Array, *, signed: bool) -> list[str]:
    """Format with a cache: most numbers of this size are the maximum of uint256."""
    cache: dict[bytes, str] = {}
    texts: list[str] = []
    content = words.tobytes()
    for at in range(0, len(content), 32):
        word = content[at : at + 32]
        if word not in cache:
            cache[word] = str(int.from_bytes(word, "big", signed=signed))
        texts.append(cache[word])
    return texts
