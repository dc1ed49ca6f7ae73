"""Conditions that every row which a filter matches must meet, so that Postgres can apply them.

Arrow proves each of them: it can tell that a filter matches no row of which something is known. The
text of a filter only suggests values, so a wrong suggestion is never applied.
"""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.types as kinds
from pyarrow.fs import LocalFileSystem

BLOCK = "block_number"
_MAX_VALUES = 32
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_INTEGER = re.compile(r"-?\b\d+\b")
_BYTES = re.compile(r"\b(?:[0-9A-F]{2})+\b")
_arrow: Any = ds  # it ships no types
_FORMAT, _FILES = _arrow.ParquetFileFormat(), LocalFileSystem()


def find_values(row_filter: Any, schema: Any, column: str) -> tuple[Any, ...]:
    """Return values of which a column has one in every row that a filter matches. Empty: any value."""
    kind = schema.field(column).type
    if column not in (text := str(row_filter)):
        return ()
    found = sorted({value for value in _suggest(text, kind) if _fits(value, kind)})
    if not 0 < len(found) <= _MAX_VALUES:
        return ()
    field = _arrow.field(column)
    values = [pa.scalar(value, kind) for value in found]
    others = [
        field.is_null(),
        field < values[0],
        field > values[-1],
        *((field > low) & (field < high) for low, high in pairwise(values)),
    ]
    if any(may_match(row_filter, schema, other) for other in others):
        return ()
    return tuple(
        value
        for value, scalar in zip(found, values, strict=True)
        if may_match(row_filter, schema, field == scalar)
    )


def _suggest(text: str, kind: Any) -> Iterator[Any]:
    """Yield constants of a type in the text of a filter."""
    if kinds.is_integer(kind):
        yield from map(int, _INTEGER.findall(text))
    elif kinds.is_binary(kind):
        yield from map(bytes.fromhex, _BYTES.findall(text))
    elif kinds.is_string(kind):
        for quoted in _QUOTED.findall(text):
            try:
                yield json.loads(quoted)
            except ValueError:  # escaped in another way
                continue


def _fits(value: Any, kind: Any) -> bool:
    """Whether Arrow and Postgres can hold a value."""
    if isinstance(value, str):
        return "\0" not in value and value.isprintable()
    if isinstance(value, bytes):
        return True
    return -(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1)


def narrow_block_range(
    row_filter: Any, schema: Any, first: int, last: int
) -> tuple[int, int] | None:
    """Return the smallest range with all blocks that a filter can match; None if it matches none.

    Arrow decides whether a filter can match within a range, so this works for any filter.
    """
    if not may_match(row_filter, schema, _make_range_condition(first, last)):
        return None
    low, high = first, last
    while low < high:  # search the first block that may match
        middle = (low + high) // 2
        found = may_match(row_filter, schema, _make_range_condition(first, middle))
        low, high = (low, middle) if found else (middle + 1, high)
    start, high = low, last
    while low < high:  # search the last block that may match
        middle = (low + high + 1) // 2
        found = may_match(row_filter, schema, _make_range_condition(middle, last))
        low, high = (middle, high) if found else (low, middle - 1)
    return start, low


def _make_range_condition(first: int, last: int) -> Any:
    block = _arrow.field(BLOCK)
    return (block >= first) & (block <= last)


def may_match(row_filter: Any, schema: Any, known: Any) -> bool:
    """Whether rows that satisfy `known` can match a filter. Arrow opens no file to decide it."""
    piece = _FORMAT.make_fragment("nowhere", filesystem=_FILES, partition_expression=known)
    whole = _arrow.FileSystemDataset([piece], schema, _FORMAT, filesystem=_FILES)
    return any(True for _ in whole.get_fragments(filter=row_filter))
