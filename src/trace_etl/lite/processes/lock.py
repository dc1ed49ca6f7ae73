"""The lock of one home: whoever supervises its stack holds it for life."""

import fcntl
import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil

from trace_etl.lite.errors import AlreadyRunning

_WRITING = 1.0  # seconds between taking the lock and having signed it, at most


@contextmanager
def held(path: Path) -> Generator[None]:
    """Hold the lock and sign it with our pid. Raises AlreadyRunning if another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _take(descriptor):
            raise already_running(path)
        os.ftruncate(descriptor, 0)
        signature = {"pid": os.getpid(), "created": psutil.Process().create_time()}
        os.write(descriptor, json.dumps(signature).encode())
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(path: Path) -> tuple[int, float] | None:
    """Pid and start time of the supervisor that holds the lock; none when it is free."""
    deadline = time.monotonic() + _WRITING
    while _is_held(path):
        text = path.read_text()
        if text:
            signature = json.loads(text)
            return signature["pid"], signature["created"]
        if time.monotonic() > deadline:
            raise AlreadyRunning(f"{path} is locked by an unknown process", f"see: fuser {path}")
        time.sleep(0.01)
    return None


def already_running(path: Path) -> AlreadyRunning:
    """The refusal, naming who runs."""
    signed = holder(path)
    who = f" (supervisor pid {signed[0]})" if signed else ""
    return AlreadyRunning(
        f"a stack already runs in {path.parent.parent}{who}",
        "look at it with `trace status`, stop it with `trace down`, "
        "or start another one with another TRACE_HOME",
    )


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        return not _take(descriptor)
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
