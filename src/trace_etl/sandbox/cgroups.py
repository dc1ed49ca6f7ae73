"""Limit the memory and the processes of a whole process tree with a control group.

Only root can create one without the help of a service manager. Version 2 and version 1 are supported.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from trace_etl.sandbox.limits import Limits

_ROOT = Path("/sys/fs/cgroup")
_PARENT = "trace-sandbox"
_MAX_REMOVED = 50
"""Groups left by others that one call of `create` removes, so that it does not take long."""


@dataclass
class Cgroup:
    """The directories of one control group: one in version 2, one per controller in version 1."""

    directories: list[Path] = field(default_factory=list[Path])
    _locks: list[int] = field(default_factory=list[int])
    """Descriptors of the locked directories. The lock of a process that was killed is free."""

    @property
    def members(self) -> list[str]:
        """The files that a process writes its id to, to become a member."""
        return [str(directory / "cgroup.procs") for directory in self.directories]

    def was_out_of_memory(self) -> bool:
        """Return whether the kernel ended a member because of the memory limit."""
        for directory in self.directories:
            for name in ("memory.events", "memory.oom_control"):  # version 2, version 1
                with suppress(OSError):
                    lines = (directory / name).read_text().splitlines()
                    return any(line.startswith("oom_kill ") and line[9:] != "0" for line in lines)
        return False

    def add(self, parent: Path) -> Path:
        """Make a directory below `parent`, and remove those that others left there. Raises OSError."""
        directory = parent / uuid4().hex
        with _locked(
            parent
        ):  # no other process takes a directory that is not locked yet for one that was left
            _remove_left(parent)
            directory.mkdir()
            lock = os.open(directory, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
        self.directories.append(directory)
        self._locks.append(lock)
        return directory

    def remove(self) -> None:
        """Remove the group. If its last member still ends, a later `create` of any process removes it."""
        for directory in self.directories:
            with suppress(OSError):
                directory.rmdir()
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()


def create(limits: Limits) -> Cgroup | None:
    """Create a control group with these limits. Return None if the kernel or the permissions do not allow it."""
    if os.geteuid() != 0:
        return None
    group = Cgroup()
    try:
        if (_ROOT / "cgroup.controllers").exists():
            _make_second_version(group, limits)
        else:
            _make_first_version(group, limits)
    except OSError:
        group.remove()
        return None
    return group


def _make_second_version(group: Cgroup, limits: Limits) -> None:
    parent = _make_parent(_ROOT)
    for directory in (_ROOT, parent):
        (directory / "cgroup.subtree_control").write_text("+memory +pids")
    made = group.add(parent)
    (made / "memory.max").write_text(str(limits.memory_bytes))
    with suppress(OSError):  # the machine has no swap
        (made / "memory.swap.max").write_text("0")
    (made / "pids.max").write_text(str(limits.processes))


def _make_first_version(group: Cgroup, limits: Limits) -> None:
    memory, pids = (
        group.add(_make_parent(_ROOT / controller)) for controller in ("memory", "pids")
    )
    (memory / "memory.limit_in_bytes").write_text(str(limits.memory_bytes))
    (pids / "pids.max").write_text(str(limits.processes))


def _make_parent(root: Path) -> Path:
    """Make the directory of all groups. Other users cannot open it, and so not lock it."""
    parent = root / _PARENT
    parent.mkdir(mode=0o700, exist_ok=True)
    return parent


def _remove_left(parent: Path) -> None:
    """Remove groups that no process has locked, and whose members have ended by now."""
    removed = 0
    for directory in parent.iterdir():
        if removed >= _MAX_REMOVED:
            return
        if not directory.is_dir():
            continue  # the entry is a file of the kernel
        with suppress(OSError), _locked(directory, fcntl.LOCK_NB):
            directory.rmdir()
            removed += 1


@contextmanager
def _locked(directory: Path, flags: int = 0) -> Generator[None]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(descriptor)
