"""What processes share: signals, the ready file, and waiting for an event."""

import asyncio
import ctypes
import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Keeps numpy and pyarrow from starting threads when they are imported: a fork would lose them."""
_THREADS = Path("/proc/self/task")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # the parameters of mallopt, from malloc.h
_MAX_HEAP_BUFFER = 8 * 2**20
_MAX_KEPT = 64 * 2**20


def exit_on_signals() -> None:
    """Let SIGTERM and SIGINT end the process immediately. For a process that holds no task yet."""

    def exit_now(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    _handle_signals(exit_now)


def stop_on_signals(stop: threading.Event | None = None) -> threading.Event:
    """Let SIGTERM and SIGINT set an event, and return it."""
    stop = stop or threading.Event()

    def set_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    _handle_signals(set_stop)
    return stop


def _handle_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def count_threads() -> int | None:
    """Count the threads of this process, including those that Python does not know; None if unknown.

    Each is a directory in /proc. Landlock forbids listing them, but not reading their number.
    """
    try:
        return _THREADS.stat().st_nlink - 2
    except FileNotFoundError:
        return None


def keep_freed_memory() -> None:
    """Keep up to 64 MiB of freed memory, for a process that moves many large buffers.

    By default, glibc returns large buffers to the kernel at once, and each new one costs page faults.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:  # other C libraries have no such option
        set_option(_M_MMAP_THRESHOLD, _MAX_HEAP_BUFFER)
        set_option(_M_TRIM_THRESHOLD, _MAX_KEPT)


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, at most the given time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0)):
            await event.wait()


def write_ready_file(path: Path | None, **state: str) -> None:
    """Write the file that shows the supervisor that this process is ready, atomically."""
    if path is None:
        return
    new = path.with_suffix(".new")
    new.write_text(json.dumps({**state, "pid": os.getpid()}))
    new.replace(path)
