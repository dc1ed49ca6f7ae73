"""How far the demo is: bars on a terminal, lines elsewhere."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import typer

from trace_etl.cli.output import duration, number

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE_EVERY = 2.0
Tally = dict[str, Any]


class Display(Protocol):
    """Shows counts, and says what is worth a line of its own."""

    def show(self, ingested: int, ranked: int, words: str) -> None: ...
    def say(self, text: str) -> None: ...


@dataclass
class Follower:
    """Counts ranges and blocks, and tells the display."""

    blocks: int
    ranges: int
    display: Display
    began: float | None = None
    """When the first range was claimed: Spark was warm then."""
    rate: float = 0.0
    """Blocks per second since."""
    _is_over: bool = False
    _told: set[str] = field(default_factory=set[str])

    def tell(self, text: str) -> None:
        """Say something, once."""
        if text not in self._told:
            self._told.add(text)
            self.display.say(text)

    def update(self, ingest: Tally, receivers: Tally) -> None:
        """Take the newest tallies in."""
        done = min(ingest["completed"], self.ranges)
        now = time.monotonic()
        if self.began is None and (ingest["running"] or done):
            self.began = now
        if self.began is not None and not self._is_over:
            self.rate = self.blocks * done / self.ranges / max(now - self.began, 0.001)
        self._is_over = done == self.ranges
        self.display.show(done, receivers["completed"], self._words(done))

    def _words(self, done: int) -> str:
        if self.began is None:
            return "waiting for Spark"
        if not self.rate:
            return "reading the chain"
        speed = f"{number(int(self.rate))} blocks/s"
        if self._is_over:
            return speed
        left = self.blocks * (1 - done / self.ranges) / self.rate
        return f"{speed}, {duration(left)} left"


@contextmanager
def follow(blocks: int, ranges: int) -> Generator[Follower]:
    """A display that suits standard output, while the block lasts."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        yield Follower(blocks, ranges, _Lines(ranges))
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield Follower(blocks, ranges, _Bars(progress, ranges))


class _Bars:
    def __init__(self, progress: "Progress", ranges: int) -> None:
        self._progress = progress
        self._ingest = self._bar("ingest", ranges)
        self._receivers = self._bar("receivers", ranges)

    def _bar(self, name: str, ranges: int) -> "TaskID":
        return self._progress.add_task(name, total=ranges, words="ranges")

    def show(self, ingested: int, ranked: int, words: str) -> None:
        self._progress.update(self._ingest, completed=ingested, words=f"ranges  {words}")
        self._progress.update(self._receivers, completed=ranked)

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False)


class _Lines:
    def __init__(self, ranges: int) -> None:
        self._ranges = ranges
        self._said = ""
        self._next = 0.0

    def show(self, ingested: int, ranked: int, words: str) -> None:
        finished = ingested == ranked == self._ranges
        counts = f"ingest {ingested}/{self._ranges}, receivers {ranked}/{self._ranges} ranges"
        if counts == self._said or (time.monotonic() < self._next and not finished):
            return
        self._said = counts
        self._next = time.monotonic() + _LINE_EVERY
        typer.echo(f"  {counts}: {words}")

    def say(self, text: str) -> None:
        typer.echo(text)
