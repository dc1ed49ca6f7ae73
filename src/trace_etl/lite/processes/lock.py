"""The lock of a home, held by its supervisor while it runs."""

import fcntl
import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil

from trace_etl.lite.errors import AlreadyRunning

_WRITE_TIMEOUT = 1.0  # maximum seconds between locking the file and writing the pid


@contextmanager
def held(path: Path) -> Generator[None]:
    """Hold the lock and write our pid into it. Raises AlreadyRunning if it is taken."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _try_lock(descriptor):
            raise already_running(path)
        os.ftruncate(descriptor, 0)
        owner = {"pid": os.getpid(), "created": psutil.Process().create_time()}
        os.write(descriptor, json.dumps(owner).encode())
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(path: Path) -> tuple[int, float] | None:
    """Return pid and start time of the supervisor that holds the lock; None if it is free."""
    deadline = time.monotonic() + _WRITE_TIMEOUT
    while is_held(path):
        text = path.read_text()
        if text:
            owner = json.loads(text)
            return owner["pid"], owner["created"]
        if time.monotonic() > deadline:
            raise AlreadyRunning(f"{path} is locked by an unknown process", f"see: fuser {path}")
        time.sleep(0.01)
    return None


def already_running(path: Path) -> AlreadyRunning:
    """Make the error that names the running supervisor."""
    found = holder(path)
    supervisor = f" (supervisor pid {found[0]})" if found else ""
    return AlreadyRunning(
        f"a stack already runs in {path.parent.parent}{supervisor}",
        "see its state with `trace status`, stop it with `trace down`, "
        "or start another one with another TRACE_HOME",
    )


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
