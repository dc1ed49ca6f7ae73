"""Where a Spark application keeps what nobody needs after it: shuffle files, sockets, its log."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

_LONGEST_SOCKET_DIRECTORY = 60  # Spark refuses longer ones: its sockets' names need the rest
_PREFIX = "run-"


@dataclass(frozen=True)
class Scratch:
    """This process's own directories; several workers may share one parent."""

    directory: Path
    sockets: Path

    @classmethod
    def make(cls, parent: Path) -> "Scratch":
        """Fresh ones. What processes that are no more left behind goes away first."""
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sweep(parent)
        directory = own_directory(parent)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
        sockets = directory / "sockets"
        if len(os.fsencode(sockets)) > _LONGEST_SOCKET_DIRECTORY:
            return cls(directory, _short_directory())
        sockets.mkdir(mode=0o700)
        return cls(directory, sockets)

    def remove(self) -> None:
        """Leave the log, drop the rest."""
        shutil.rmtree(self.sockets, ignore_errors=True)
        shutil.rmtree(self.directory / "local", ignore_errors=True)


def own_directory(parent: Path) -> Path:
    """This process's own; gone with what is in it when somebody starts after our end."""
    return parent / f"{_PREFIX}{os.getpid()}"


def _short_directory() -> Path:
    """Somewhere a socket's path fits, even when TMPDIR is long."""
    usual = tempfile.gettempdir()
    short = len(os.fsencode(usual)) + 16 <= _LONGEST_SOCKET_DIRECTORY
    return Path(tempfile.mkdtemp(prefix="trace-", dir=usual if short else "/tmp"))  # noqa: S108


def _sweep(parent: Path) -> None:
    for left in parent.glob(f"{_PREFIX}*"):
        pid = left.name.removeprefix(_PREFIX)
        if pid.isdecimal() and not _is_alive(int(pid)):
            shutil.rmtree(left, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
