"""The output of Python code that runs for a task in executors on this machine.

The driver makes a file for each task and passes its name with the jobs of the task. Python processes append
what they print to it, and the driver passes it on. Executors on other machines cannot open the file: what
they print stays in their own logs.
"""

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pyspark import TaskContext

from trace_etl.spark.output import MAX_BYTES, Write, replace_streams

PROPERTY = "trace.output"
"""The local property of Spark jobs with the path of the file."""
_READ_SECONDS = 0.5


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


def install() -> None:
    """Let this Python process of an executor append what a task prints to the file of its job."""
    replace_streams(_find_file)


def _find_file() -> Write | None:
    context = TaskContext.get()
    file = context.getLocalProperty(PROPERTY) if context is not None else None
    if not file:
        return None
    try:
        opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:  # the task has ended, or its driver is on another machine
        return None

    def append(content: bytes) -> None:
        try:
            if os.fstat(opened).st_size <= MAX_BYTES:
                os.write(opened, content[: MAX_BYTES + 1])
        finally:
            os.close(opened)

    return append
