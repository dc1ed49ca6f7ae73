"""Show the progress of something long on stderr: only on a terminal, never with --json."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from trace_etl.cli.output import format_duration, prints_json

if TYPE_CHECKING:
    from rich.progress import ProgressColumn, Task, TaskID
    from rich.text import Text

_BAR_WIDTH = 20


class Report(Protocol):
    """Shows a phase: the amount done, the amount in all (0 if it is not known), and a detail."""

    def __call__(self, phase: str, done: int, total: int, detail: str = "") -> None: ...


@contextmanager
def show_bytes() -> Generator[Report]:
    """Show phases that count bytes, with the time left."""
    from rich.progress import DownloadColumn

    with _show_phases(DownloadColumn()) as report:
        yield report


@contextmanager
def show_counts() -> Generator[Report]:
    """Show phases that count things, with the time left."""
    from rich.progress import MofNCompleteColumn

    with _show_phases(MofNCompleteColumn()) as report:
        yield report


@contextmanager
def _show_phases(amount: "ProgressColumn") -> Generator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=_BAR_WIDTH),
        amount,
        _make_time_column(),
        TextColumn(
            "{task.fields[detail]}",
            markup=False,
            table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
        ),
    )
    is_shown = console.is_terminal and not prints_json()
    with Progress(
        *columns, console=console, transient=True, expand=True, disable=not is_shown
    ) as progress:
        bars: dict[str, TaskID] = {}

        def report(phase: str, done: int, total: int, detail: str = "") -> None:
            if phase not in bars:
                bars[phase] = progress.add_task(phase, total=None, detail="")
            known = max(total, done) if total else None
            progress.update(bars[phase], completed=done, total=known, detail=detail)

        yield report


def _make_time_column() -> "ProgressColumn":
    from rich.progress import ProgressColumn
    from rich.text import Text

    class TimeColumn(ProgressColumn):
        """The time left, or the time passed while the time left is not known."""

        def render(self, task: "Task") -> "Text":
            if task.time_remaining is not None and not task.finished:
                return Text(f"{format_duration(task.time_remaining)} left")
            return Text(format_duration(task.elapsed or 0))

    return TimeColumn()
