"""32-byte words to numbers: long, decimal, or binary + decimal string + double."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_Array = Any  # numpy and pyarrow arrays alike: neither says more about what is in it
LONG_BITS = 63
DECIMAL_BITS = 120
WIDE = pa.struct([("binary", pa.binary()), ("string", pa.string()), ("f64", pa.float64())])
# Below 2^252 a number has at most 76 digits, which is what a 256-bit decimal holds.
_FITS_76_DIGITS = np.uint64(1 << 60)
_FITS_BELOW_ZERO = np.uint64((1 << 64) - (1 << 60))


def is_long(bits: int, *, signed: bool) -> bool:
    return bits <= LONG_BITS + signed


def decimal_type(bits: int) -> Any:
    """64 bits have 20 digits; what is wider takes the widest decimal that SQL engines share."""
    return pa.decimal128(20 if bits <= 64 else 38, 0)


def longs(words: _Array) -> _Array:
    return pa.array(words.view(">u8")[:, 3].astype(np.uint64).view(np.int64))


def decimals(words: _Array, bits: int) -> _Array:
    little = np.ascontiguousarray(words[:, :15:-1])
    return pa.Array.from_buffers(decimal_type(bits), len(words), [None, pa.py_buffer(little)])


def wide(words: _Array, *, signed: bool) -> tuple[_Array, _Array, _Array]:
    """The 32 bytes as they are, the decimal digits, and the nearest double."""
    texts = _texts(words, signed=signed)
    return fixed_binary(words), texts, pc.cast(texts, pa.float64())


def fixed_binary(values: _Array) -> _Array:
    """Rows of equally many bytes as a binary column."""
    count, size = values.shape
    offsets = np.arange(0, count * size + 1, size or 1, dtype=np.int32)[: count + 1]
    content = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), content])


def _texts(words: _Array, *, signed: bool) -> _Array:
    top = words.view(">u8")[:, 0].astype(np.uint64)
    fits = top < _FITS_76_DIGITS
    if signed:
        fits |= top >= _FITS_BELOW_ZERO
    if np.all(fits):
        return _few_digits(words)
    texts = np.empty(len(words), object)
    texts[fits] = _few_digits(words[fits]).to_numpy(zero_copy_only=False)
    texts[~fits] = _many_digits(words[~fits], signed=signed)
    return pa.array(texts, pa.string())


def _few_digits(words: _Array) -> _Array:
    little = pa.py_buffer(np.ascontiguousarray(words[:, ::-1]))
    numbers = pa.Array.from_buffers(pa.decimal256(76, 0), len(words), [None, little])
    return pc.cast(numbers, pa.string())


def _many_digits(words: _Array, *, signed: bool) -> list[str]:
    """Numbers this large are mostly one and the same: the largest there is."""
    known: dict[bytes, str] = {}
    texts: list[str] = []
    content = words.tobytes()
    for at in range(0, len(content), 32):
        word = content[at : at + 32]
        if word not in known:
            known[word] = str(int.from_bytes(word, "big", signed=signed))
        texts.append(known[word])
    return texts
