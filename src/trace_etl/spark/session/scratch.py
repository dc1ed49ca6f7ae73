"""Temporary directories of a Spark application: shuffle files, sockets and its log."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

_MAX_SOCKET_DIRECTORY = 60  # Spark needs the rest of a socket path for its file names
_PREFIX = "run-"


@dataclass(frozen=True)
class Scratch:
    """The directories of this process. Several workers may share one parent."""

    directory: Path
    sockets: Path

    @classmethod
    def make(cls, parent: Path) -> "Scratch":
        """Create the directories, and remove those of processes that have ended."""
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _remove_orphans(parent)
        directory = own_directory(parent)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
        sockets = directory / "sockets"
        if len(os.fsencode(sockets)) > _MAX_SOCKET_DIRECTORY:
            return cls(directory, _make_short_directory())
        sockets.mkdir(mode=0o700)
        return cls(directory, sockets)

    def remove(self) -> None:
        """Remove everything except the log."""
        shutil.rmtree(self.sockets, ignore_errors=True)
        shutil.rmtree(self.directory / "local", ignore_errors=True)


def own_directory(parent: Path) -> Path:
    """The directory of this process. A later process removes it once this one has ended."""
    return parent / f"{_PREFIX}{os.getpid()}"


def _make_short_directory() -> Path:
    """Make a directory whose path is short enough for sockets, even if TMPDIR is long."""
    default = tempfile.gettempdir()
    is_short = len(os.fsencode(default)) + 16 <= _MAX_SOCKET_DIRECTORY
    return Path(tempfile.mkdtemp(prefix="trace-", dir=default if is_short else "/tmp"))  # noqa: S108


def _remove_orphans(parent: Path) -> None:
    for directory in parent.glob(f"{_PREFIX}*"):
        pid = directory.name.removeprefix(_PREFIX)
        if pid.isdecimal() and not _is_alive(int(pid)):
            shutil.rmtree(directory, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
