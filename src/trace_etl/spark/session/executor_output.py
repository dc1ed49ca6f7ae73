"""The output of Python code that runs for a task in executors on this machine.

The driver makes a file for each task and passes its name with the jobs of the task. Python processes append
what they print to it, and the driver passes it on. Executors on other machines cannot open the file: what
they print stays in their own logs.
"""

import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from pyspark import TaskContext

from trace_etl.spark.output import MAX_BYTES, Lines, Write, replace_streams

PROPERTY = "trace.output"
"""The local property of Spark jobs with the path of the file."""
_READ_SECONDS = 0.5
RunTask = Callable[[BinaryIO, BinaryIO], None]


@contextmanager
def follow_file(file: Path, send: Write) -> Generator[None]:
    """Pass on what processes append to a file, while the task runs and until its end."""
    file.touch(0o600)
    is_over = threading.Event()

    def read() -> None:
        with file.open("rb") as opened:
            left = MAX_BYTES + 1
            while True:
                is_last = is_over.wait(_READ_SECONDS)  # read once more after the end
                if content := opened.read(left):
                    left -= len(content)
                    send(content)
                if is_last:
                    return

    reader = threading.Thread(target=read, name="executor-output", daemon=True)
    reader.start()
    try:
        yield
    finally:
        is_over.set()
        reader.join()
        file.unlink(missing_ok=True)


_files: dict[str, Lines] = {}
"""The file of the task that runs in this process."""


def install() -> None:
    """Let this Python process of an executor append what a task prints to the file of its job."""
    from pyspark import worker  # large, and the driver does not need it

    replace_streams(_find_file)
    run_task: RunTask = worker.main  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]

    def run_with_output(infile: BinaryIO, outfile: BinaryIO) -> None:
        try:
            run_task(infile, outfile)
        finally:
            _close_files()  # before PySpark flushes its last answer, which ends the task

    worker.main = run_with_output


def _close_files() -> None:
    for lines in _files.values():
        lines.close()
    _files.clear()


def _find_file() -> Lines | None:
    context = TaskContext.get()
    file = context.getLocalProperty(PROPERTY) if context is not None else None
    if not file:
        return None
    if file not in _files:
        _close_files()
        _files[file] = Lines(partial(_append, file))
    return _files[file]


def _append(file: str, content: bytes) -> None:
    try:
        opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:  # the task has ended, or its driver is on another machine
        return
    try:
        if os.fstat(opened).st_size <= MAX_BYTES:
            os.write(opened, content[: MAX_BYTES + 1])
    finally:
        os.close(opened)
