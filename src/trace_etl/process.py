"""What the synchronous processes (worker and sink) share: signals and the ready file."""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType


def exit_on_signals() -> None:
    """Let SIGTERM and SIGINT end the process at once. For a process that holds nothing yet."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    _handle_signals(leave)


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()

    _handle_signals(ask)
    return stop


def _handle_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def write_ready_file(path: Path | None, **state: str) -> None:
    """Tell the supervisor that this process is up. A reader sees the old content or the new."""
    if path is None:
        return
    new = path.with_suffix(".new")
    new.write_text(json.dumps({**state, "pid": os.getpid()}))
    new.replace(path)
