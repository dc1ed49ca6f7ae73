"""Show the progress of the demo: bars on a terminal, lines elsewhere."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import typer

from trace_etl.cli.output import format_duration, format_number

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE_INTERVAL = 2.0
TaskCounts = dict[str, Any]


class Display(Protocol):
    """Shows counts of finished ranges, and prints messages between them."""

    def show(self, ingested: int, ranked: int, status: str) -> None: ...
    def print_line(self, text: str) -> None: ...


@dataclass
class DemoProgress:
    """Computes the rate and the time left, and updates the display."""

    blocks: int
    ranges: int
    display: Display
    began: float | None = None
    """When the first range was claimed. Spark had started by then."""
    rate: float = 0.0
    """Blocks per second since `began`."""
    _is_over: bool = False
    _printed: set[str] = field(default_factory=set[str])

    def print_once(self, text: str) -> None:
        """Print a message, unless it was printed before."""
        if text not in self._printed:
            self._printed.add(text)
            self.display.print_line(text)

    def update(self, ingest: TaskCounts, receivers: TaskCounts) -> None:
        """Update the display with the current task counts."""
        done = min(ingest["completed"], self.ranges)
        now = time.monotonic()
        if self.began is None and (ingest["running"] or done):
            self.began = now
        if self.began is not None and not self._is_over:
            self.rate = self.blocks * done / self.ranges / max(now - self.began, 0.001)
        self._is_over = done == self.ranges
        self.display.show(done, receivers["completed"], self._format_status(done))

    def _format_status(self, done: int) -> str:
        if self.began is None:
            return "waiting for Spark"
        if not self.rate:
            return "reading the chain"
        speed = f"{format_number(int(self.rate))} blocks/s"
        if self._is_over:
            return speed
        left = self.blocks * (1 - done / self.ranges) / self.rate
        return f"{speed}, {format_duration(left)} left"


@contextmanager
def show_progress(blocks: int, ranges: int) -> Generator[DemoProgress]:
    """Show a progress display while the block runs."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        yield DemoProgress(blocks, ranges, _Lines(ranges))
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield DemoProgress(blocks, ranges, _Bars(progress, ranges))


class _Bars:
    def __init__(self, progress: "Progress", ranges: int) -> None:
        self._progress = progress
        self._ingest = self._add_bar("ingest", ranges)
        self._receivers = self._add_bar("receivers", ranges)

    def _add_bar(self, name: str, ranges: int) -> "TaskID":
        return self._progress.add_task(name, total=ranges, status="ranges")

    def show(self, ingested: int, ranked: int, status: str) -> None:
        self._progress.update(self._ingest, completed=ingested, status=f"ranges  {status}")
        self._progress.update(self._receivers, completed=ranked)

    def print_line(self, text: str) -> None:
        self._progress.console.print(text, markup=False)


class _Lines:
    def __init__(self, ranges: int) -> None:
        self._ranges = ranges
        self._printed = ""
        self._next = 0.0

    def show(self, ingested: int, ranked: int, status: str) -> None:
        finished = ingested == ranked == self._ranges
        counts = f"ingest {ingested}/{self._ranges}, receivers {ranked}/{self._ranges} ranges"
        if counts == self._printed or (time.monotonic() < self._next and not finished):
            return
        self._printed = counts
        self._next = time.monotonic() + _LINE_INTERVAL
        typer.echo(f"  {counts}: {status}")

    def print_line(self, text: str) -> None:
        typer.echo(text)
