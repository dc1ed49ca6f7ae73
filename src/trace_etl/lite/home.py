"""TRACE_HOME: the directory of one stack, readable by its owner only."""

import errno
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from trace_etl.lite.credentials import private_files
from trace_etl.lite.errors import DiskFull, HomeUnusable, StackError
from trace_etl.lite.processes import lock
from trace_etl.model.storage import SCRATCH

BUCKET = "trace"
_NEEDED_BYTES = 256 * 1024 * 1024
_DIRECTORIES = (
    "tls",
    "keys",
    "keys/task",
    "keys/certificates",
    "keys/user",
    "keys/user/public",
    "keys/service",
    "keys/service/public",
    "tokens",
    "tokens/workers",
    "credentials",
    "secrets",
    "logs",
    "run",
    "objects",
    "spark",
    "functions",
    "programs",
)
_FILES = ("connection.json", "config.json", "runtimes.yaml", "home.json", "postgres.log")
# Leaves room for the names of a service, its operator host and Unix sockets. A host can write only here.
_SHORT_PATH = 23
_MADE_NAME = len("/trace-12345678")


class Home:
    """The layout of one TRACE_HOME."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = path / "connection.json"
        # Exists only while a backup is restored into this home.
        self.restoring = path / ".restoring"
        self.config = path / "config.json"
        # Written by the user: runtimes beside the shipped ones.
        self.runtimes = path / "runtimes.yaml"
        self.postgres = path / "postgres"
        self.mark = path / "home.json"
        self.database_mark = self.postgres / "home.json"
        # The passwords of all roles, for the supervisor only.
        self.pgpass = self.credentials("supervisor") / "pgpass"
        self.tls = path / "tls"
        self.task_keys = path / "keys" / "task"
        self.certificate_keys = path / "keys" / "certificates"
        self.user_keys = path / "keys" / "user"
        self.user_public_keys = self.user_keys / "public"
        self.user_token = path / "tokens" / "user.jwt"
        self.worker_token = path / "tokens" / "workers" / "token"
        self.service_keys = path / "keys" / "service"
        self.service_public_keys = self.service_keys / "public"
        self.service_tokens = {
            name: self.credentials(name) / "token" for name in ("scheduler", "sink")
        }
        self.secrets = path / "secrets"
        # Written by the user: native programs that jobs can run.
        self.programs = path / "programs"
        self.logs = path / "logs"
        self.run = path / "run"
        self.lock = self.run / "lock"
        self.record = self.run / "stack.json"
        self.objects = path / "objects"
        self.scratch = self.objects / BUCKET / SCRATCH
        self.spark = path / "spark"

    @classmethod
    def at(cls, path: Path) -> "Home":
        """Return the home at a path, which may be relative or start with `~`."""
        return cls(path.expanduser().absolute())

    def credentials(self, service: str) -> Path:
        """Return the directory that holds the credentials of one service."""
        return self.path / "credentials" / service

    def ready_file(self, service: str) -> Path:
        return self.run / service / "ready"

    def open(self) -> None:
        """Create missing directories, readable by the owner only. Raises HomeUnusable or DiskFull."""
        with explain_os_errors(self.path):
            if self.path.exists() and self.path.stat().st_uid != os.geteuid():
                raise HomeUnusable(
                    f"{self.path} belongs to another user",
                    "run as that user, or choose another directory with TRACE_HOME",
                )
            private_files.make_directory(self.path)
            for name in _DIRECTORIES:
                private_files.make_directory(self.path / name)
            private_files.make_directory(self.objects / BUCKET)
            private_files.make_directory(self.scratch)
            private_files.write(self.run / ".writable", "yes")
            self._move_old_files()
        check_space(self.path)

    def remove(self) -> None:
        """Delete everything that `open` created. Delete the home too if it is empty afterwards."""
        self._remove_temporary_directory()
        for name in {Path(directory).parts[0] for directory in _DIRECTORIES}:
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)
        if self.path.exists() and not any(self.path.iterdir()):
            self.path.rmdir()

    @contextmanager
    def removed_if_refused(self) -> Generator[None]:
        """Remove a home that did not exist before, if the start is refused before it has a database.

        Another start of the same new home, which holds the lock, keeps it.
        """
        with explain_os_errors(self.path):
            is_new = not self.path.exists()
        try:
            yield
        except StackError:
            is_empty = not (self.postgres / "data").exists()
            if is_new and self.path.exists() and is_empty and not lock.is_held(self.lock):
                self.remove()
            raise

    @property
    def private_paths(self) -> list[Path]:
        """Everything in the home that a service may use only if it is named for that service."""
        names = {Path(name).parts[0] for name in (*_DIRECTORIES, *_FILES, "postgres")}
        return [self.path / name for name in sorted(names)]

    def make_service_directory(self, service: str) -> Path:
        """Create the working directory of a service, empty."""
        directory = self.run / service
        shutil.rmtree(directory, ignore_errors=True)
        return private_files.make_directory(directory)

    @contextmanager
    def temporary_directory(self) -> Generator[Path]:
        """Create a directory for temporary files, whose path is short enough for Unix sockets."""
        self._remove_temporary_directory()
        link = self.run / "temporary"
        if len(os.fsencode(link)) <= _SHORT_PATH:
            yield private_files.make_directory(link)
            return
        default = tempfile.gettempdir()
        is_short = len(os.fsencode(default)) + _MADE_NAME <= _SHORT_PATH
        parent = default if is_short else "/tmp"  # noqa: S108
        with tempfile.TemporaryDirectory(prefix="trace-", dir=parent) as made:
            link.symlink_to(made)
            yield Path(made)
        link.unlink(missing_ok=True)

    def _remove_temporary_directory(self) -> None:
        """Remove the directory of a supervisor that was killed."""
        link = self.run / "temporary"
        if link.is_symlink():
            shutil.rmtree(link.readlink(), ignore_errors=True)
            link.unlink()
        shutil.rmtree(link, ignore_errors=True)

    def _move_old_files(self) -> None:
        """Move the password file and the worker token of an earlier release to their directories."""
        private_files.make_directory(self.pgpass.parent)
        moves = {"pgpass": self.pgpass, "tokens/worker": self.worker_token}
        for name, new in moves.items():
            if (self.path / name).is_file():
                (self.path / name).replace(new)


def check_space(path: Path) -> None:
    """Raise DiskFull if the disk of `path` has too little free space to start the stack."""
    free = shutil.disk_usage(path).free
    if free < _NEEDED_BYTES:
        raise _make_disk_full_error(path, f"only {free // 2**20} MB are left")


@contextmanager
def explain_os_errors(path: Path) -> Generator[None]:
    """Turn an OSError below `path` into HomeUnusable or DiskFull, with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _make_disk_full_error(path, "no space is left") from error
        raise HomeUnusable(
            f"cannot use {error.filename or path}: {error.strerror}",
            f"make {path} a directory you can write, or choose another with TRACE_HOME",
        ) from error


def _make_disk_full_error(path: Path, detail: str) -> DiskFull:
    return DiskFull(
        f"the disk of {path} is full: {detail}",
        f"free at least {_NEEDED_BYTES // 2**20} MB, or choose another disk with TRACE_HOME",
    )
