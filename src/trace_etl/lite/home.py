"""TRACE_HOME: where everything of one stack lives, readable by its owner only."""

import errno
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trace_etl.lite.credentials import private_files
from trace_etl.lite.errors import DiskFull, HomeUnusable

BUCKET = "trace"
_NEEDED_BYTES = 256 * 1024 * 1024
_DIRECTORIES = (
    "tls",
    "keys",
    "keys/task",
    "keys/user",
    "tokens",
    "secrets",
    "logs",
    "run",
    "objects",
    "spark",
)
_FILES = ("connection.json", "config.json", "pgpass", "postgres.log")


@dataclass(frozen=True)
class Home:
    """The layout of one TRACE_HOME."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> "Home":
        """Return the home at a path, which may be relative or start with `~`."""
        return cls(path.expanduser().absolute())

    @property
    def connection(self) -> Path:
        return self.path / "connection.json"

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def postgres(self) -> Path:
        return self.path / "postgres"

    @property
    def pgpass(self) -> Path:
        return self.path / "pgpass"

    @property
    def tls(self) -> Path:
        return self.path / "tls"

    @property
    def task_keys(self) -> Path:
        return self.path / "keys" / "task"

    @property
    def user_keys(self) -> Path:
        return self.path / "keys" / "user"

    @property
    def user_token(self) -> Path:
        return self.path / "tokens" / "user.jwt"

    @property
    def worker_token(self) -> Path:
        return self.path / "tokens" / "worker"

    @property
    def secrets(self) -> Path:
        return self.path / "secrets"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def lock(self) -> Path:
        return self.run / "lock"

    @property
    def record(self) -> Path:
        return self.run / "stack.json"

    @property
    def objects(self) -> Path:
        return self.path / "objects"

    @property
    def spark(self) -> Path:
        return self.path / "spark"

    def open(self) -> None:
        """Make what is missing and close it to others. Raises HomeUnusable or DiskFull."""
        with explained(self.path):
            if self.path.exists() and self.path.stat().st_uid != os.geteuid():
                raise HomeUnusable(
                    f"{self.path} belongs to another user",
                    "run as that user, or choose another directory with TRACE_HOME",
                )
            private_files.make_directory(self.path)
            for name in _DIRECTORIES:
                private_files.make_directory(self.path / name)
            private_files.make_directory(self.objects / BUCKET)
            private_files.write(self.run / ".writable", "yes")
        check_space(self.path)

    def remove(self) -> None:
        """Delete what `open` made, and the home itself if nothing else is in it."""
        for name in {Path(directory).parts[0] for directory in _DIRECTORIES}:
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)
        if self.path.exists() and not any(self.path.iterdir()):
            self.path.rmdir()


def check_space(path: Path) -> None:
    """Raise DiskFull when the disk under `path` has too little space to start on."""
    free = shutil.disk_usage(path).free
    if free < _NEEDED_BYTES:
        raise _disk_full(path, f"only {free // 2**20} MB are left")


@contextmanager
def explained(path: Path) -> Generator[None]:
    """Turn the operating system's refusals under `path` into ours, with what to do."""
    try:
        yield
    except OSError as refused:
        if refused.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(path, "no space is left") from refused
        raise HomeUnusable(
            f"cannot use {refused.filename or path}: {refused.strerror}",
            f"make {path} a directory you can write, or choose another with TRACE_HOME",
        ) from refused


def _disk_full(path: Path, how: str) -> DiskFull:
    return DiskFull(
        f"the disk of {path} is full: {how}",
        f"free at least {_NEEDED_BYTES // 2**20} MB, or choose another disk with TRACE_HOME",
    )
