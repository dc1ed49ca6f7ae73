"""Parse columns of hexadecimal text into typed Arrow columns, without Python code per row."""

from binascii import Error as HexError
from binascii import unhexlify
from itertools import pairwise
from typing import Any, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from trace_etl.proof import native

_Array = Any  # pyarrow ships no types
_MISSING = "a value is missing"
_NO_PREFIX = "hexadecimal data without 0x"
_ZERO, _X = ord("0"), ord("x")
_LARGEST = (1 << 63) - 1


def parse_binary(texts: _Array, *, optional: bool = False) -> _Array:
    """Parse `0x…` of any even length; null stays null if `optional`. Raises ValueError."""
    if native.kernels and (pair := native.kernels.decode_hex(native.pass_column(texts), optional)):
        return native.make_binary(len(texts), pair, _make_validity(texts))
    data, starts, lengths = _read_texts(texts, optional)
    sizes = np.maximum(lengths - 2, 0)
    if np.any(sizes % 2):
        raise ValueError("hexadecimal data with an odd number of digits")
    try:
        content = unhexlify(_strip_prefixes(data, starts, lengths))
    except HexError as error:
        raise ValueError(f"not hexadecimal: {error}") from error
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(sizes // 2, out=offsets[1:])
    return _make_binary(len(texts), offsets, content, _make_validity(texts))


def split_texts(texts: _Array) -> list[str | None]:
    """Return the texts of a column, faster than `to_pylist`."""
    if len(texts) == 0:
        return []
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(texts) + 1, texts.offset * 4)
    content = bytes(memoryview(data_buffer or b"")[offsets[0] : offsets[-1]]).decode()
    borders = (offsets - offsets[0]).tolist()
    values: list[str | None] = [content[a:b] for a, b in pairwise(borders)]
    for row in np.flatnonzero(np.asarray(texts.is_null())) if texts.null_count else ():
        values[row] = None
    return values


def parse_fixed(texts: _Array, *, length: int, prefix: int) -> _Array:
    """Parse values of `length` bytes, and put a byte before each. Raises ValueError."""
    data, starts, lengths = _read_texts(texts, optional=False)
    wrong = np.flatnonzero(lengths != 2 * length + 2)
    if len(wrong):
        size = (int(lengths[wrong[0]]) - 2) / 2
        raise ValueError(f"a value of {size:g} bytes instead of {length}")
    data = data.copy()
    data[starts], data[starts + 1] = b"%02x" % prefix  # instead of 0x
    try:
        content = unhexlify(data.tobytes())
    except HexError as error:
        raise ValueError(f"not hexadecimal: {error}") from error
    offsets = np.arange(0, (length + 1) * len(texts) + 1, length + 1, dtype=np.int32)
    return _make_binary(len(texts), offsets, content, None)


def parse_integers(texts: _Array, *, optional: bool = False) -> _Array:
    """Parse quantities to int64. Raises ValueError, or OverflowError above 63 bits."""
    if native.kernels:
        numbers = native.kernels.decode_integers(native.pass_column(texts), optional)
        if numbers is not None:
            buffers = [_make_validity(texts), pa.py_buffer(numbers)]
            return pa.Array.from_buffers(pa.int64(), len(texts), buffers)
    data, starts, lengths = _read_texts(texts, optional)
    if np.any(lengths == 2):
        raise ValueError("a quantity without digits")
    if lengths.max(initial=0) > 18:
        raise OverflowError("a quantity of more than 64 bits")
    values = _parse_runs(data, lengths)
    if values is None:
        values = _parse_numbers(data, starts, lengths)
    if np.any(values >> np.uint64(63)):
        raise OverflowError("a quantity of more than 63 bits")
    buffer = pa.py_buffer(values.astype(np.int64))
    return pa.Array.from_buffers(pa.int64(), len(texts), [_make_validity(texts), buffer])


def parse_minimal_bytes(texts: _Array, *, optional: bool = False) -> _Array:
    """Parse quantities to big-endian bytes without leading zeros; null becomes empty if `optional`."""
    data, starts, lengths = _read_texts(texts, optional)
    if np.any(lengths == 2):
        raise ValueError("a quantity without digits")
    present = lengths > 0
    firsts = starts[present]
    is_zero = data[firsts + 2] == _ZERO
    if np.any(is_zero & (lengths[present] > 3)):
        # Some nodes pad quantities with zeros.
        stripped = _strip_zeros(texts)
        if stripped.equals(texts):
            raise ValueError("a quantity that is not hexadecimal")
        return parse_minimal_bytes(stripped, optional=optional)
    is_odd = (lengths[present] % 2 == 1) & ~is_zero
    data, keep = data.copy(), np.ones(len(data), np.bool_)
    keep[firsts] = False
    keep[firsts[~is_odd] + 1] = False
    data[firsts[is_odd] + 1] = _ZERO  # the x becomes the digit that makes the number even
    keep[firsts[is_zero] + 2] = False
    try:
        content = unhexlify(data[keep].tobytes())
    except HexError as error:
        raise ValueError("a quantity that is not hexadecimal") from error
    sizes = np.zeros(len(texts), np.int64)
    sizes[present] = np.where(is_zero, 0, (lengths[present] - 1) // 2)
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return _make_binary(len(texts), offsets, content, None)


def _strip_zeros(texts: _Array) -> _Array:
    return pc.replace_substring_regex(texts, "^0x0+([0-9a-fA-F])", r"0x\1")


def parse_wide_integers(texts: _Array) -> tuple[_Array, _Array, _Array]:
    """Parse 256-bit quantities to 32-byte big-endian binary, decimal string and double."""
    data, starts, lengths = _read_texts(texts, optional=False)
    if np.any(lengths == 2):
        raise ValueError("a quantity without digits")
    is_wide = lengths > 18
    wide = [int(text, 16) for text in texts.filter(pa.array(is_wide)).to_pylist()]
    narrow = ~is_wide
    # Most have at most 64 bits; the few others are parsed one by one.
    texts_of_narrow = _select_texts(data, lengths, narrow) if wide else (data, starts, lengths)
    numbers = _parse_numbers(*texts_of_narrow)
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
    return _make_binary(len(texts), offsets, exact.tobytes(), None), decimals, pa.array(doubles)


def parse_saturated(texts: _Array) -> _Array:
    """Parse quantities to int64; the largest int64 stands for a larger one, and null stays null."""
    try:
        return parse_integers(texts, optional=True)
    except OverflowError:
        numbers = [None if text is None else int(text, 16) for text in texts.to_pylist()]
        return pa.array([n if n is None else min(n, _LARGEST) for n in numbers], pa.int64())


def parse_padded(texts: _Array) -> _Array:
    """Parse quantities of up to 256 bits to 32 bytes; null stays null."""
    if texts.null_count:
        exact, _, _ = parse_wide_integers(pc.fill_null(texts, "0x0"))
        return pc.if_else(texts.is_null(), None, exact)
    return parse_wide_integers(texts)[0]


def write_decimals(texts: _Array) -> _Array:
    """Write quantities of any size as decimal digits; null stays null."""
    try:
        return parse_integers(texts, optional=True).cast(pa.string())
    except OverflowError:
        numbers = [None if text is None else str(int(text, 16)) for text in texts.to_pylist()]
        return pa.array(numbers, pa.string())


def write_json(values: _Array) -> _Array:
    """Write nested values as JSON, without nulls; null and empty lists become null."""
    texts = [
        orjson.dumps(_drop_nulls(value)).decode() if value else None for value in values.to_pylist()
    ]
    return pa.array(texts, pa.string())


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_drop_nulls(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {name: _drop_nulls(item) for name, item in fields.items() if item is not None}
    return value


def repeat_constant(value: int, count: int) -> _Array:
    return pa.array(np.full(count, value, np.int64))


def count_bytes(column: _Array) -> tuple[_Array, _Array]:
    """Count bytes and zero bytes per value of a column that `parse_binary` made without nulls."""
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1)
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8, int(offsets[-1]))
    zeros = np.zeros(len(data) + 1, np.int64)
    np.cumsum(data == 0, out=zeros[1:])
    return pa.array(np.diff(offsets).astype(np.int64)), pa.array(np.diff(zeros[offsets]))


def take_nth(lists: _Array, index: int) -> _Array:
    """Take the element at `index` of each list; null if the list is shorter."""
    offsets = np.asarray(lists.offsets)
    missing = np.diff(offsets) <= index
    return lists.values.take(pa.array(offsets[:-1] + index, mask=missing))


def repeat_values(column: _Array, counts: Any) -> _Array:
    """Repeat each value `counts` times."""
    return column.take(pa.array(np.repeat(np.arange(len(column)), counts)))


def join_lists(lists: _Array, separator: str) -> _Array:
    """Join the numbers of each list into one text."""
    texts = pa.ListArray.from_arrays(lists.offsets, lists.values.cast(pa.string()))
    return pc.binary_join(texts, separator)


def list_lengths(lists: _Array) -> Any:
    """The length of each list. Raises ValueError for a null."""
    if lists.null_count:
        raise ValueError(_MISSING)
    return np.diff(np.asarray(lists.offsets))


def _read_texts(texts: _Array, optional: bool) -> tuple[Any, Any, Any]:
    """The characters of a string column, and the start and length of each text."""
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
        raise ValueError(_NO_PREFIX)
    if np.any(data[present] != _ZERO) or np.any(data[present + 1] != _X):
        raise ValueError(_NO_PREFIX)
    return data, starts, lengths


def _parse_runs(data: Any, lengths: Any) -> Any:
    """Parse a column with long runs of equal values, like block numbers; None for others."""
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
    values = _parse_numbers(firsts.reshape(-1), np.cumsum(lengths) - length, lengths)
    return values[np.cumsum(is_first) - 1]


def _parse_numbers(data: Any, starts: Any, lengths: Any) -> Any:
    """Parse quantities of at most 64 bits; a null becomes 0. Raises ValueError."""
    sizes = np.maximum(lengths - 2, 0)
    digits = np.frombuffer(_strip_prefixes(data, starts, lengths), np.uint8)
    # Right-align each number in sixteen digits.
    padded = np.full(16 * len(lengths), _ZERO, np.uint8)
    ends = 16 * np.arange(1, len(lengths) + 1)
    padded[np.arange(len(digits)) + np.repeat(ends - np.cumsum(sizes), sizes)] = digits
    try:
        return np.frombuffer(unhexlify(padded.tobytes()), ">u8").astype(np.uint64)
    except HexError as error:
        raise ValueError("a quantity that is not hexadecimal") from error


def _select_texts(data: Any, lengths: Any, which: Any) -> tuple[Any, Any, Any]:
    """The characters, starts and lengths of some of the texts."""
    selected = data[np.repeat(which, lengths)]
    lengths = lengths[which]
    return selected, np.cumsum(lengths) - lengths, lengths


def _strip_prefixes(data: Any, starts: Any, lengths: Any) -> bytes:
    """The characters of the texts without their 0x."""
    is_there = lengths > 0
    longest = int(lengths.max(initial=0))
    if longest and np.array_equal(lengths, is_there * longest):
        return data.reshape(-1, longest)[:, 2:].tobytes()
    is_digit = np.ones(len(data), np.bool_)
    present = starts[is_there]
    is_digit[present] = is_digit[present + 1] = False
    return data[is_digit].tobytes()


def _make_binary(count: int, offsets: Any, content: bytes, validity: Any) -> _Array:
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _make_validity(texts: _Array) -> Any:
    if not texts.null_count:
        return None
    return pa.py_buffer(np.packbits(np.asarray(texts.is_valid()), bitorder="little"))
