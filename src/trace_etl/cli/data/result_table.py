"""Print the rows of a query as a table that fits the terminal."""

from collections.abc import Sequence
from typing import Any

import typer

from trace_etl.cli.output import format_cell, open_console, print_rows

_NUMBER_TYPES = ("INT", "DECIMAL", "DOUBLE", "FLOAT", "BIGNUM")
_GAP = 3  # between two columns
_MIN_CELL = 8
_ELLIPSIS = "…"


def print_result(answer: dict[str, Any]) -> None:
    """Print the rows. In a terminal, long values are shortened; if even this does not fit, every
    row is printed as a block of lines."""
    columns: list[dict[str, str]] = answer["columns"]
    names = [column["name"] for column in columns]
    is_number = [any(name in column["type"] for name in _NUMBER_TYPES) for column in columns]
    console = open_console()
    if not console.is_terminal:
        print_rows(names, answer["rows"], right=_select(names, is_number))
        return
    rows = [[format_cell(value) for value in row] for row in answer["rows"]]
    widths = fit_widths(measure_widths(names, rows), console.width)
    if widths is None:
        _print_blocks(names, rows, console.width)
        return
    shown = [[shorten(v, width) for v, width in zip(row, widths, strict=True)] for row in rows]
    headings = [shorten(name, width) for name, width in zip(names, widths, strict=True)]
    print_rows(headings, shown, right=_select(headings, is_number))


def _select(names: Sequence[str], chosen: Sequence[bool]) -> list[str]:
    return [name for name, is_chosen in zip(names, chosen, strict=True) if is_chosen]


def measure_widths(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width that each column needs."""
    return [
        max([len(name), *(len(row[number]) for row in rows)]) for number, name in enumerate(names)
    ]


def fit_widths(needed: Sequence[int], available: int) -> list[int] | None:
    """Shrink the widest columns until all fit; None if they cannot without becoming unreadable."""
    room = available - _GAP * (len(needed) - 1)
    if room < sum(min(width, _MIN_CELL) for width in needed):
        return None
    limit = max(needed, default=0)
    while sum(min(width, limit) for width in needed) > room:
        limit -= 1
    return [min(width, limit) for width in needed]


def shorten(text: str, width: int) -> str:
    """Cut out the middle of a text, so that hashes stay distinguishable."""
    if len(text) <= width:
        return text
    tail = min(4, (width - 1) // 2)
    return text[: width - 1 - tail] + _ELLIPSIS + text[len(text) - tail :]


def _print_blocks(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> None:
    margin = max(len(name) for name in names)
    for number, row in enumerate(rows, 1):
        typer.secho(f"-- row {number} ".ljust(min(width, 60), "-"), dim=True)
        for name, value in zip(names, row, strict=True):
            typer.echo(f"{name:<{margin}}  {shorten(value, max(width - margin - _GAP, _MIN_CELL))}")
