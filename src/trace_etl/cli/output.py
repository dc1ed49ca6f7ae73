"""Print answers: tables for people, JSON for programs."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

Columns = Mapping[str, Callable[[dict[str, Any]], object]]
"""The columns of a table: heading, and how to get the cell from an item."""

_UNLIMITED_WIDTH = 10_000
_GAP = 2  # spaces between two columns
_MIN_CELL = 8
_MIN_SENTENCE = 16
_ELLIPSIS = "…"
_STATUS_STYLES = {
    "Completed": "green",
    "Running": "cyan",
    "Queued": "yellow",
    "Failed": "red",
    "Canceled": "dim",
}


def print_json(value: object) -> None:
    """Print JSON."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_error(errors: Sequence[Mapping[str, object]]) -> None:
    """Print errors as JSON on stderr; stdout has answers only."""
    typer.echo(json.dumps({"errors": errors}, indent=2, ensure_ascii=False), err=True)


def print_note(text: str, colour: str | None = None) -> None:
    """Print a note for people on stderr. With --json, stderr has nothing but errors."""
    if not _is_json:
        typer.secho(text, err=True, fg=colour)


_is_json = False
_is_wide = False


def choose_json(value: bool) -> bool:
    """Remember whether the command was called with --json, for its errors."""
    global _is_json  # noqa: PLW0603 - one command per process
    _is_json = value
    return value


def prints_json() -> bool:
    """Return whether the running command was called with --json."""
    return _is_json


def choose_wide(value: bool) -> bool:
    """Remember whether the command was called with --wide, for its tables."""
    global _is_wide  # noqa: PLW0603 - one command per process
    _is_wide = value
    return value


def print_answer(
    answer: dict[str, Any], as_json: bool, print_text: Callable[[dict[str, Any]], None]
) -> None:
    """Print an answer of the API as JSON, or as text with `print_text`."""
    if as_json:
        print_json(answer)
    else:
        print_text(answer)


def open_console() -> "Console":
    """Open standard output as a rich console.

    It has the width of the terminal, or COLUMNS. With --wide, and in a pipe, lines are not limited.
    """
    from rich.console import Console

    console = Console(highlight=False)
    if not _is_wide and (console.is_terminal or "COLUMNS" in os.environ):
        return console
    return Console(highlight=False, width=_UNLIMITED_WIDTH)


class WholeText(str):
    """A text that a table never shortens: an id, a time."""


def format_id(value: str | None) -> str | None:
    """Shorten an id to its beginning, which commands accept instead of the id. --wide shows all of it."""
    if value is None or _is_wide:
        return value
    # An id of version 7 begins with its time: ids made together differ in the third group.
    return WholeText(value[:18] if value[14:15] == "7" else value[:8])


def print_items(
    items: Sequence[dict[str, Any]],
    columns: Columns,
    *,
    right: Sequence[str] = (),
    wide: Sequence[str] = (),
) -> None:
    """Print a table with a row per item, like `print_rows`."""
    rows = [[cell(item) for cell in columns.values()] for item in items]
    print_rows(list(columns), rows, right=right, wide=wide)


def print_rows(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Sequence[str] = (),
    wide: Sequence[str] = (),
) -> None:
    """Print a table that fits the console: long values are shortened.

    If even this does not fit, print every row as a block of lines. `right` names the columns to align
    right, `wide` those that only --wide shows.
    """
    if wide and not _is_wide:
        shown = [number for number, name in enumerate(headings) if name not in wide]
        headings = [headings[number] for number in shown]
        rows = [[row[number] for number in shown] for row in rows]
    console = open_console()
    cells = [list(map(format_cell, row)) for row in rows]
    numbers = range(len(headings))
    is_kept = [any(isinstance(row[n], WholeText) for row in rows) for n in numbers]
    has_words = [any(" " in row[n] for row in cells) for n in numbers]
    needed = measure_widths(headings, cells)
    # Sentences, such as reasons, are shortened before names.
    only_words = [keep or not words for keep, words in zip(is_kept, has_words, strict=True)]
    widths = fit_widths(needed, console.width, only_words, _MIN_SENTENCE)
    if widths is None:
        widths = fit_widths(needed, console.width, is_kept)
    if widths is None:
        _print_blocks(headings, cells, console.width)
    else:
        _print_table(console, headings, cells, widths, right)


def _print_table(
    console: "Console",
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    right: Sequence[str],
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    for heading, width in zip(headings, widths, strict=True):
        justify = "right" if heading in right else "left"
        table.add_column(Text(shorten(heading, width)), justify=justify, overflow="fold")
    for row in rows:
        pairs = zip(row, widths, strict=True)
        table.add_row(*(Text(shorten(v, w), style=_STATUS_STYLES.get(v, "")) for v, w in pairs))
    console.print(table)


def measure_widths(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width that each column needs."""
    return [
        max([_measure(name), *(_measure(row[number]) for row in rows)])
        for number, name in enumerate(headings)
    ]


def _measure(text: str) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, text.splitlines() or [""]))


def fit_widths(
    needed: Sequence[int], available: int, kept: Sequence[bool], min_width: int = _MIN_CELL
) -> list[int] | None:
    """Shrink the widest columns until all fit; None if they must become narrower than `min_width`.

    Columns that are kept do not shrink.
    """
    room = available - _GAP * (len(needed) - 1)
    room -= sum(width for width, keep in zip(needed, kept, strict=True) if keep)
    elastic = [width for width, keep in zip(needed, kept, strict=True) if not keep]
    if room < sum(min(width, min_width) for width in elastic):
        return None
    limit = max(elastic, default=0)
    while sum(min(width, limit) for width in elastic) > room:
        limit -= 1
    pairs = zip(needed, kept, strict=True)
    return [width if keep else min(width, limit) for width, keep in pairs]


def shorten(text: str, width: int) -> str:
    """Cut off the end of a sentence, or the middle of a word, so that hashes stay distinguishable."""
    if _measure(text) <= width:
        return text
    tail = 0 if " " in text else min(4, (width - 1) // 2)
    text = " ".join(text.split())
    return text[: width - 1 - tail] + _ELLIPSIS + text[len(text) - tail :]


def _print_blocks(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> None:
    margin = max(len(name) for name in headings)
    for number, row in enumerate(rows, 1):
        typer.secho(f"-- row {number} ".ljust(min(width, 60), "-"), dim=True)
        for name, value in zip(headings, row, strict=True):
            typer.echo(f"{name:<{margin}}  {shorten(value, max(width - margin - _GAP, _MIN_CELL))}")


def print_fields(fields: Mapping[str, object]) -> None:
    """Print the fields, except those that are None, each on a line. Long values continue on further lines."""
    margin = max(len(name) for name in fields)
    room = max(open_console().width - margin - 2, _MIN_CELL)
    for name, value in fields.items():
        if value is not None:
            lines = format_cell(value).splitlines()
            pieces = [piece for line in lines for piece in wrap(line, room, break_on_hyphens=False)]
            for number, piece in enumerate(pieces or [""]):
                typer.echo(f"{'' if number else name:<{margin}}  {piece}".rstrip())


def format_cell(value: object) -> str:
    """Format a value for a table cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def format_number(value: int | None) -> str:
    """Format 1234567 as 1,234,567."""
    return "-" if value is None else f"{value:,}"


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun: `1 chunk`, `2,000 chunks`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def format_size(value: int | None) -> str:
    """Format a number of bytes with a readable unit."""
    if value is None:
        return "-"
    amount = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def format_time(at: str | None) -> str:
    """Format an ISO time in the local time zone."""
    if at is None:
        return "-"
    return WholeText(f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M:%S}")


def format_elapsed(start: str | None, end: str | None) -> str:
    """Format the time between two ISO times; without an end, the time until now."""
    if start is None:
        return "-"
    until = datetime.fromisoformat(end) if end else datetime.now(UTC)
    return format_duration((until - datetime.fromisoformat(start)).total_seconds())


def format_duration(seconds: float) -> str:
    """Format seconds as `2.5 s`, `4 min 10 s` or `3 h 20 min`."""
    if seconds < 120:
        return f"{max(seconds, 0):.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def format_scope(item: Mapping[str, Any]) -> str:
    """Format the block range of a dataset, or the key of a partition without a range."""
    if item.get("range_start") is None:
        return str(item.get("partition_key") or "-")
    return f"{item['range_start']}-{item['range_end']}"


def format_job(item: Mapping[str, Any]) -> str:
    """Format the full name of an item's job: `dag.job`."""
    return f"{item['dag']}.{item['job']}"
