"""The two forms of a backup: a directory, or one tar file. Both are readable by the owner only."""

import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from trace_etl.lite.backup.manifest import Entry
from trace_etl.lite.credentials import private_files
from trace_etl.lite.errors import BackupUnusable

CHUNK = 1 << 20
OnBytes = Callable[[int], None]


class Archive(Protocol):
    """A backup while it is written."""

    def add(self, name: str, content: BinaryIO, size: int) -> None:
        """Add a file of a known size."""
        ...


@contextmanager
def create(path: Path) -> Generator[Archive]:
    """Write a backup under a temporary path: a tar file if the name ends in `.tar`, else a directory."""
    if path.name.endswith(".tar"):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with (
            os.fdopen(descriptor, "wb") as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            yield _TarArchive(tar)
            tar.close()
            file.flush()
            os.fsync(file.fileno())
        return
    yield _DirectoryArchive(private_files.make_directory(path))


class _TarArchive:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar

    def add(self, name: str, content: BinaryIO, size: int) -> None:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = size, 0o600
        self._tar.addfile(entry, content)


class _DirectoryArchive:
    def __init__(self, root: Path) -> None:
        self._root = root

    def add(self, name: str, content: BinaryIO, size: int) -> None:
        path = self._root / name
        private_files.make_directory(path.parent)
        with path.open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            shutil.copyfileobj(content, file, CHUNK)
            file.flush()
            os.fsync(file.fileno())


def hash_bytes(content: bytes) -> str:
    """Return the SHA-256 of a small file."""
    return hashlib.sha256(content).hexdigest()


class HashingReader:
    """A stream that hashes what is read from it."""

    def __init__(self, source: BinaryIO, on_bytes: OnBytes) -> None:
        self._source, self._on_bytes = source, on_bytes
        self._hash, self.size = hashlib.sha256(), 0

    def read(self, size: int = -1) -> bytes:
        chunk = self._source.read(CHUNK if size < 0 else size)
        self._hash.update(chunk)
        self.size += len(chunk)
        self._on_bytes(len(chunk))
        return chunk

    def entry(self, name: str) -> Entry:
        """Describe what was read."""
        return Entry(name, self.size, self._hash.hexdigest())


class OpenBackup(Protocol):
    """A backup that is read."""

    def open(self, name: str) -> BinaryIO:
        """Open a file. Raises BackupUnusable if it is missing."""
        ...


@contextmanager
def open_backup(path: Path) -> Generator[OpenBackup]:
    """Open a backup of either form. Raises BackupUnusable."""
    if path.is_dir():
        yield _DirectoryBackup(path)
        return
    try:
        tar = tarfile.open(path, "r:")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        raise BackupUnusable(f"{path} does not exist", "name a backup") from None
    except (tarfile.TarError, OSError) as error:
        raise BackupUnusable(f"{path} is not a backup: {error}", "name a backup") from None
    with tar:
        yield _TarBackup(path, tar)


class _DirectoryBackup:
    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, name: str) -> BinaryIO:
        try:
            return (self._root / name).open("rb")
        except (FileNotFoundError, NotADirectoryError):
            raise missing(self._root, name) from None


class _TarBackup:
    def __init__(self, path: Path, tar: tarfile.TarFile) -> None:
        self._path, self._tar = path, tar
        try:
            self._members = {member.name: member for member in tar.getmembers()}
        except (tarfile.TarError, OSError) as error:
            raise BackupUnusable(f"{path} is damaged: {error}", "use another backup") from None

    def open(self, name: str) -> BinaryIO:
        member = self._members.get(name)
        found = self._tar.extractfile(member) if member else None
        if found is None:
            raise missing(self._path, name)
        return found  # type: ignore[return-value]


def missing(path: Path, name: str) -> BackupUnusable:
    """Make the error for a file that a backup does not have."""
    return BackupUnusable(f"{path} is damaged: {name} is missing", "use another backup")
