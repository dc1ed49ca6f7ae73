"""Print answers: tables for people, JSON for programs."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Columns = Mapping[str, Callable[[dict[str, Any]], object]]
"""The columns of a table: heading, and how to get the cell from an item."""

_PIPED_WIDTH = 10_000  # outside a terminal, a row is never wrapped
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


_is_json = False


def choose_json(value: bool) -> bool:
    """Remember whether the command was called with --json, for its errors."""
    global _is_json  # noqa: PLW0603 - one command per process
    _is_json = value
    return value


def prints_json() -> bool:
    """Return whether the running command was called with --json."""
    return _is_json


def print_answer(
    answer: dict[str, Any], as_json: bool, print_text: Callable[[dict[str, Any]], None]
) -> None:
    """Print an answer of the API as JSON, or as text with `print_text`."""
    if as_json:
        print_json(answer)
    else:
        print_text(answer)


def open_console() -> "Console":
    """Open standard output as a rich console."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPED_WIDTH)


def print_items(
    items: Sequence[dict[str, Any]], columns: Columns, *, right: Sequence[str] = ()
) -> None:
    """Print a table with a row per item. `right` names the columns to align right."""
    rows = [[cell(item) for cell in columns.values()] for item in items]
    print_rows(list(columns), rows, right=right)


def print_rows(
    headings: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """Print a table of plain values."""
    from rich.text import Text

    table = _make_table(headings, right)
    for row in rows:
        table.add_row(*(Text(format_cell(v), style=_STATUS_STYLES.get(str(v), "")) for v in row))
    open_console().print(table)


def _make_table(headings: Sequence[str], right: Sequence[str]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return table


def print_fields(fields: Mapping[str, object]) -> None:
    """Print one line per field; skip the fields that are None."""
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        if value is not None:
            typer.echo(f"{name:<{width}}  {format_cell(value)}")


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
    return "-" if at is None else f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M:%S}"


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
