"""Objects as files under one directory.

Reads, listings and deletions go through obstore. Writes do not: obstore's LocalStore does not sync
files and directories to disk, which the commit protocol needs.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

from trace_etl.objects.errors import (
    NotAnObject,
    ObjectExists,
    ObjectMissing,
    ObjectTooLarge,
    StorageError,
    write_errors,
)
from trace_etl.objects.store import ObjectInfo, check_key

if TYPE_CHECKING:
    from obstore.store import LocalStore

_NOT_A_FILE = {errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENAMETOOLONG}


@dataclass(frozen=True)
class FileStore:
    """Buckets are directories under `root`."""

    root: Path

    @property
    def scheme(self) -> str:
        return "file"

    @property
    def url(self) -> str:
        return self.root.as_uri()

    def get(self, key: str) -> bytes:
        with _read_errors(key):
            return self._client.get(check_key(key)).bytes().to_bytes()

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        with _read_errors(key):
            return self._client.get_range(check_key(key), start=start, length=length).to_bytes()

    def get_untrusted(self, key: str, *, max_bytes: int) -> bytes:
        with self._open_untrusted(key) as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ObjectTooLarge(f"{key} is larger than {max_bytes} bytes")
        return content

    def get_untrusted_tail(self, key: str, *, max_bytes: int) -> tuple[int, bytes]:
        with self._open_untrusted(key) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - max_bytes))
            return size, file.read(max_bytes)

    def put(self, key: str, content: bytes) -> None:
        self._write(key, content, os.replace)

    def create(self, key: str, content: bytes) -> None:
        self._write(key, content, _link_once)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with _read_errors(prefix):
            client = cast("Any", self._client)  # the type of its listing is incomplete
            for chunk in client.list(check_key(prefix.removesuffix("/"))):
                for entry in chunk:
                    yield ObjectInfo(entry["path"], entry["size"], entry["last_modified"])

    def delete(self, key: str) -> None:
        with suppress(ObjectMissing), _read_errors(key):
            self._client.delete(check_key(key))

    def open_writer(self, key: str, *, attempt: int = 0) -> "FileWriter":
        return FileWriter(self.root, self._path(key), attempt)

    def uri(self, key: str) -> str:
        return str(self._path(key))

    def arrow_path(self, key: str) -> str:
        return str(self._path(key))

    def arrow_filesystem(self) -> Any:
        from pyarrow.fs import LocalFileSystem  # the Dispatcher does not load pyarrow

        return LocalFileSystem()

    def probe_key(self) -> str:
        return f".probe-{secrets.token_hex(8)}"

    @property
    def _client(self) -> "LocalStore":
        return _open_client(str(self.root))

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    @contextmanager
    def _open_untrusted(self, key: str) -> Generator[BinaryIO]:
        bucket, *names = check_key(key).split("/")
        try:
            with _open_without_links(self.root / bucket, names) as file:
                yield file
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                raise NotAnObject(f"{key} is not a file, or a link leads to it") from error
            kind = ObjectMissing if error.errno == errno.ENOENT else StorageError
            raise kind(f"cannot read {key}: {error.strerror}") from error

    def _write(self, key: str, content: bytes, publish: Callable[[Path, Path], None]) -> None:
        path = self._path(key)
        draft = _draft_path(path, secrets.randbits(32))
        with write_errors(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                draft.write_bytes(content)
                _sync(draft)
                publish(draft, path)
                _sync_directories(self.root, path)
            finally:
                draft.unlink(missing_ok=True)


class FileWriter:
    """A file that is written under a draft name and renamed when it is complete."""

    def __init__(self, root: Path, path: Path, attempt: int) -> None:
        self._root = root
        self._path = path
        self._draft = _draft_path(path, attempt)
        self._is_committed = False
        self.stream: Any = None

    def __enter__(self) -> Self:
        import pyarrow as pa  # the Dispatcher does not load pyarrow

        try:
            with self.errors():
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self.stream = pa.OSFile(str(self._draft), "wb")
        except StorageError:
            self._discard()
            raise
        return self

    @property
    def name(self) -> str:
        return self._path.name

    def errors(self) -> AbstractContextManager[None]:
        return write_errors(str(self._path))

    def commit(self) -> int:
        with self.errors():
            self.stream.close()
            size = _sync(self._draft)
            self._draft.rename(self._path)
            _sync_directories(self._root, self._path)
        self._is_committed = True
        return size

    def __exit__(self, *failure: object) -> None:
        if not self._is_committed:
            self._discard()

    def _discard(self) -> None:
        """Remove the draft. Ignores errors, so that the original error is reported."""
        with suppress(OSError):
            if self.stream is not None:
                self.stream.close()
        with suppress(OSError):
            self._draft.unlink(missing_ok=True)


@lru_cache(8)
def _open_client(root: str) -> "LocalStore":
    from obstore.store import LocalStore  # executors that only write do not load obstore

    return LocalStore(root, mkdir=True)


@contextmanager
def _read_errors(key: str) -> Generator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:
        raise ObjectMissing(f"there is no object {key}") from error
    except (BaseError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise StorageError(f"cannot read {key}: {reason}") from error


@contextmanager
def _open_without_links(directory: Path, names: list[str]) -> Generator[BinaryIO]:
    """Open a file without following any link below the directory.

    Each directory is opened relative to its parent. The owner of the files may change them at any
    time, so it would not be safe to check a path first and open it later.
    """
    with ExitStack() as stack:
        parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, parent)
        for name in names[:-1]:
            parent = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            stack.callback(os.close, parent)
        # Without O_NONBLOCK, opening a FIFO would block until another process writes to it.
        descriptor = os.open(names[-1], os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=parent)
        stack.callback(os.close, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENXIO, "not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as content:
            yield content


def _draft_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}#{number}")  # obstore's listings leave out such names


def _link_once(draft: Path, path: Path) -> None:
    try:
        os.link(draft, path)
    except FileExistsError as error:
        raise ObjectExists(f"{path} exists already") from error


def _sync_directories(root: Path, path: Path) -> None:
    """Sync the directories from the file up to the root: a power failure must not lose any of them."""
    _sync(path.parent)
    for directory in path.parents:
        if directory == root:
            return
        _sync_entry(directory)


@lru_cache(1024)
def _sync_entry(directory: Path) -> None:
    """Sync the entry of a directory in its parent. Once per process: the entry does not change."""
    _sync(directory.parent)


def _sync(path: Path) -> int:
    """Sync a file or directory to disk. Returns its size."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        return os.fstat(handle).st_size
    finally:
        os.close(handle)
