"""Limit the memory and the processes of a whole process tree with a control group.

Only root can create one without the help of a service manager. Version 2 and version 1 are supported.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from trace_etl.sandbox.limits import Limits

_ROOT = Path("/sys/fs/cgroup")
_PARENT = "trace-sandbox"


@dataclass(frozen=True)
class Cgroup:
    """The directories of one control group: one in version 2, one per controller in version 1."""

    directories: tuple[Path, ...]

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

    def remove(self) -> None:
        """Remove the empty group. A group whose last member still ends stays, and costs nothing."""
        for directory in self.directories:
            with suppress(OSError):
                directory.rmdir()


def create(limits: Limits) -> Cgroup | None:
    """Create a control group with these limits. Return None if the kernel or the permissions do not allow it."""
    if os.geteuid() != 0:
        return None
    name = f"{_PARENT}/{uuid4().hex}"
    with suppress(OSError):
        if (_ROOT / "cgroup.controllers").exists():
            return _create_second_version(name, limits)
        return _create_first_version(name, limits)
    return None


def _create_second_version(name: str, limits: Limits) -> Cgroup:
    (_ROOT / _PARENT).mkdir(exist_ok=True)
    for parent in (_ROOT, _ROOT / _PARENT):
        (parent / "cgroup.subtree_control").write_text("+memory +pids")
    directory = _ROOT / name
    directory.mkdir()
    (directory / "memory.max").write_text(str(limits.memory_bytes))
    with suppress(OSError):  # a machine without swap
        (directory / "memory.swap.max").write_text("0")
    (directory / "pids.max").write_text(str(limits.processes))
    return Cgroup((directory,))


def _create_first_version(name: str, limits: Limits) -> Cgroup:
    memory, pids = _ROOT / "memory" / name, _ROOT / "pids" / name
    for directory in (memory, pids):
        directory.mkdir(parents=True)
    (memory / "memory.limit_in_bytes").write_text(str(limits.memory_bytes))
    (pids / "pids.max").write_text(str(limits.processes))
    return Cgroup((memory, pids))
