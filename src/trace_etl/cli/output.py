"""Showing answers: tables for people, JSON for programs."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PIPED_WIDTH = 10_000  # not a terminal: one line a row, whatever its length
_STATUS_STYLES = {
    "Completed": "green",
    "Running": "cyan",
    "Queued": "yellow",
    "Failed": "red",
    "Canceled": "dim",
}


def print_json(value: object) -> None:
    """For programs: the service's own answer."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def console() -> "Console":
    """Standard output as rich sees it."""
    from rich.console import Console

    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_PIPED_WIDTH)


def table(headings: Sequence[str], *, right: Sequence[str] = ()) -> "Table":
    """An empty table; the columns named in `right` hold numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for heading in headings:
        made.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return made


def print_rows(
    headings: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """A table of plain values."""
    from rich.text import Text

    made = table(headings, right=right)
    for row in rows:
        made.add_row(*(Text(shown(v), style=_STATUS_STYLES.get(str(v), "")) for v in row))
    console().print(made)


def print_fields(fields: Mapping[str, object]) -> None:
    """One thing: a line a field, empty ones left out."""
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        if value is not None:
            typer.echo(f"{name:<{width}}  {shown(value)}")


def shown(value: object) -> str:
    """A value in a cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def number(value: int | None) -> str:
    """1234567 as 1,234,567."""
    return "-" if value is None else f"{value:,}"


def size(value: int | None) -> str:
    """Bytes, in the unit that suits."""
    if value is None:
        return "-"
    amount = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def local_time(at: str | None) -> str:
    """An ISO time on this machine's clock."""
    return "-" if at is None else f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M:%S}"


def took(start: str | None, end: str | None) -> str:
    """How long something ran, or has been running."""
    if start is None:
        return "-"
    until = datetime.fromisoformat(end) if end else datetime.now(UTC)
    return duration((until - datetime.fromisoformat(start)).total_seconds())


def duration(seconds: float) -> str:
    """2.5 s, 4 min 10 s, 3 h 20 min."""
    if seconds < 120:
        return f"{max(seconds, 0):.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def blocks(item: Mapping[str, Any]) -> str:
    """The range of a dataset, a partition or a task."""
    if item.get("range_start") is None:
        return str(item.get("partition_key") or "-")
    return f"{item['range_start']}-{item['range_end']}"
