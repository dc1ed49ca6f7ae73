"""Write an encoded result to a file or to standard output, while it is received."""

import os
import secrets
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from trace_etl.cli.client import fail
from trace_etl.cli.progress import Report


def save_pieces(path: Path, pieces: Iterator[bytes], report: Report) -> int:
    """Write the pieces to a file, which appears only when it is complete. Returns its size."""
    size = 0
    report(path.name, 0, 0)
    with open_when_complete(path) as file:
        for piece in pieces:
            size += file.write(piece)
            report(path.name, size, 0)
    return size


@contextmanager
def open_when_complete(path: Path) -> Generator[BinaryIO]:
    """Open a file that replaces `path` at the end of the block, unless the block fails."""
    partial = path.parent / f".{path.name}.{secrets.token_hex(4)}.partial"
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        fail([f"{path}: {error.strerror}"])
    finally:
        partial.unlink(missing_ok=True)


def print_pieces(pieces: Iterator[bytes]) -> int:
    """Write the pieces to standard output. Returns their size. Stops quietly if its reader stops."""
    size = 0
    try:
        for piece in pieces:
            size += sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # Python would report the error again when it flushes standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return size
