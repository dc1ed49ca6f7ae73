"""Decide from certificates whether rows were only moved to other files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MODULUS = 2**256


@dataclass(frozen=True)
class RowSet:
    """The rows of a partition, as its certificate describes them."""

    row_sum: str | None
    """The sum of the row hashes, as hexadecimal digits; None if it is not known."""
    columns: Sequence[dict[str, str]]
    by_columns: Sequence[tuple[Sequence[str], str]] | None = None
    """The row sums of the rows by the columns of their files, if some of them lack columns."""


def keeps_all_rows(rows: RowSet, parts: Sequence[RowSet]) -> bool:
    """Whether a partition has exactly the rows and columns of its parts, as far as certificates prove it."""
    if not parts or rows.row_sum is None:
        return False
    columns = sort_columns(rows.columns)
    expected: dict[tuple[str, ...], int] = {}
    for part in parts:
        own = sort_columns(part.columns)
        if part.row_sum is None or not set(own) <= set(columns):
            return False
        names = tuple(name for name, _ in own)
        expected[names] = (expected.get(names, 0) + int(part.row_sum, 16)) % _MODULUS
    narrow = None if has_equal_columns(rows, parts) else rows.by_columns
    by_columns = narrow or [([name for name, _ in columns], rows.row_sum)]
    sums = {tuple(sorted(names)): int(row_sum, 16) for names, row_sum in by_columns}
    return _drop_zeros(sums) == _drop_zeros(expected)


def has_equal_columns(rows: RowSet, parts: Sequence[RowSet]) -> bool:
    """Whether all parts have the columns of the partition."""
    columns = sort_columns(rows.columns)
    return all(sort_columns(part.columns) == columns for part in parts)


def _drop_zeros(sums: Mapping[tuple[str, ...], int]) -> dict[tuple[str, ...], int]:
    """Leave out the sums of no rows."""
    return {names: total for names, total in sums.items() if total}


def sort_columns(columns: Sequence[dict[str, str]]) -> list[tuple[str, str]]:
    """Return the names and types of columns, sorted."""
    return sorted((column["name"], column["type"]) for column in columns)
