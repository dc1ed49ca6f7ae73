"""Decide from certificates whether rows were only moved to other files."""

from collections.abc import Sequence
from dataclasses import dataclass

_MODULUS = 2**256


@dataclass(frozen=True)
class RowSet:
    """What a certificate says of the rows of a partition."""

    row_sum: str | None
    """The sum of the row hashes, as hexadecimal digits; None if it is not known."""
    columns: Sequence[dict[str, str]]


def keeps_all_rows(rows: RowSet, parts: Sequence[RowSet]) -> bool:
    """Whether a partition has exactly the rows and columns of its parts, as far as certificates prove it."""
    if not parts or rows.row_sum is None:
        return False
    columns = sort_columns(rows.columns)
    total = 0
    for part in parts:
        if part.row_sum is None or sort_columns(part.columns) != columns:
            return False
        total += int(part.row_sum, 16)
    return int(rows.row_sum, 16) == total % _MODULUS


def sort_columns(columns: Sequence[dict[str, str]]) -> list[tuple[str, str]]:
    """Return names and types in one order."""
    return sorted((column["name"], column["type"]) for column in columns)
