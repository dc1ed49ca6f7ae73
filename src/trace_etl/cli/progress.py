"""Show the progress of something long on stderr: a bar on a terminal, lines elsewhere."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import typer

from trace_etl.cli.output import format_duration, format_size

_LINE_INTERVAL = 2.0
Report = Callable[[str, int, int], None]
"""Called with the name of a phase, the amount done and the amount in all."""


@contextmanager
def show_bytes(quiet: bool = False) -> Generator[Report]:
    """Show phases that count bytes, with the time left. `quiet` shows nothing."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if quiet:
        yield lambda phase, done, total: None
    elif console.is_terminal:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TaskID,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description:<16}"),
            BarColumn(bar_width=24),
            DownloadColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as progress:
            bars: dict[str, TaskID] = {}

            def show(phase: str, done: int, total: int) -> None:
                if phase not in bars:
                    bars[phase] = progress.add_task(phase, total=total)
                progress.update(bars[phase], completed=done, total=total)

            yield show
    else:
        yield _Lines().show


class _Lines:
    def __init__(self) -> None:
        self._phase = ""
        self._began = self._next = 0.0

    def show(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._began, self._next = phase, now, now + _LINE_INTERVAL
        if now < self._next:
            return
        self._next = now + _LINE_INTERVAL
        left = (now - self._began) * (total - done) / max(done, 1)
        typer.echo(
            f"{phase}: {format_size(done)} of {format_size(total)}, {format_duration(left)} left",
            err=True,
        )
