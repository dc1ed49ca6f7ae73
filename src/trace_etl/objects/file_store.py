"""Objects as files under one directory.

Reads and listings go through obstore. Writes do not: obstore's LocalStore does not sync files and
directories to disk, which the commit protocol needs. Deletions do not either: obstore follows links, and
untrusted code may have made a link to the files of another attempt.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast
from uuid import UUID

from trace_etl.objects.errors import (
    NotAnObject,
    ObjectExists,
    ObjectMissing,
    ObjectTooLarge,
    StorageError,
    write_errors,
)
from trace_etl.objects.store import Deleted, ObjectInfo, check_key

if TYPE_CHECKING:
    from obstore.store import LocalStore

_BUCKET = "trace"
_FIRST_ORG = UUID("00000000-0000-0000-0000-000000000001")
"""The organisation that every stack has. Its bucket has no suffix, so that older objects stay valid."""
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

    def org_root(self, org_id: UUID) -> str:
        return _BUCKET if org_id == _FIRST_ORG else f"{_BUCKET}-{org_id}"

    def make_org_directory(self, org_id: UUID) -> Path:
        """Create the directory of an organisation, for processes that may use nothing else."""
        directory = self.path(self.org_root(org_id))
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sync(self.root)
        return directory

    def get(self, key: str) -> bytes:
        with _read_errors(key):
            return self._client.get(check_key(key)).bytes().to_bytes()

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        with _read_errors(key):
            return self._client.get_range(check_key(key), start=start, length=length).to_bytes()

    def get_untrusted(self, key: str, *, max_bytes: int) -> bytes:
        with self.open_untrusted(key) as file:
            if (
                os.fstat(file.fileno()).st_nlink > 1
            ):  # the link may lead to a file outside of the prefix
                raise NotAnObject(f"{key} has a second name: a hard link leads to it")
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ObjectTooLarge(f"{key} is larger than {max_bytes} bytes")
        return content

    def get_untrusted_tail(self, key: str, *, max_bytes: int) -> tuple[int, bytes]:
        with self.open_untrusted(key) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - max_bytes))
            return size, file.read(max_bytes)

    def get_untrusted_range(self, key: str, *, start: int, length: int) -> bytes:
        with self.open_untrusted(key) as file:
            file.seek(start)
            return file.read(length)

    def put(self, key: str, content: bytes) -> None:
        self._write(key, content, os.replace)

    def create(self, key: str, content: bytes) -> None:
        self._write(key, content, _link_once)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with _read_errors(prefix):
            client = cast("Any", self._client)  # obstore's type of a listing is incomplete
            for chunk in client.list(check_key(prefix.removesuffix("/"))):
                for entry in chunk:
                    yield ObjectInfo(entry["path"], entry["size"], entry["last_modified"])

    def delete(self, key: str) -> None:
        *parents, name = check_key(key).split("/")
        with _delete_errors(key), _open_directory(self.root, parents) as parent:
            os.unlink(name, dir_fd=parent)

    def delete_prefix(
        self, prefix: str, *, first: str, keep: Collection[str] = frozenset()
    ) -> Deleted:
        parts = check_key(prefix.removesuffix("/")).split("/")
        deleted = Deleted(0, 0)
        with _delete_errors(prefix), _open_directory(self.root, parts) as opened:
            deleted = _delete_files(opened, "/".join(parts) + "/", first=first, keep=keep)
        for depth in (len(parts), len(parts) - 1):  # the directories of the attempt and of its task
            with suppress(OSError), _open_directory(self.root, parts[: depth - 1]) as parent:
                os.rmdir(parts[depth - 1], dir_fd=parent)
        return deleted

    def open_writer(self, key: str, *, attempt: int = 0) -> "FileWriter":
        return FileWriter(self.root, self.path(key), attempt)

    def read_urls(self, keys: Sequence[str], *, life: timedelta) -> tuple[str, ...]:
        return tuple(str(self.path(key)) for key in keys)

    def jvm_path(self, key: str) -> str | None:
        return str(self.path(key))

    def open_input(self, key: str) -> Any:
        import pyarrow as pa  # the Dispatcher does not load pyarrow

        with _read_errors(key):
            return pa.OSFile(str(self.path(key)), "rb")

    def probe_key(self) -> str:
        return f".probe-{secrets.token_hex(8)}"

    @property
    def _client(self) -> "LocalStore":
        return _open_client(str(self.root))

    def path(self, key: str) -> Path:
        """The file of a key. Raises InvalidKey."""
        return self.root / check_key(key)

    def publish_draft(self, draft: str, key: str) -> None:
        """Give a complete, synced file its key. Replaces the file that has it."""
        path = self.path(key)
        with write_errors(str(path)):
            self.path(draft).replace(path)
            _sync_directories(self.root, path)

    @contextmanager
    def open_untrusted(self, key: str) -> Generator[BinaryIO]:
        """Open an object that untrusted code may have written, without following links."""
        try:
            with _open_without_links(self.root, check_key(key).split("/")) as file:
                yield file
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                raise NotAnObject(f"{key} is not a file, or a link leads to it") from error
            kind = ObjectMissing if error.errno == errno.ENOENT else StorageError
            raise kind(f"cannot read {key}: {error.strerror}") from error

    def _write(self, key: str, content: bytes, publish: Callable[[Path, Path], None]) -> None:
        path = self.path(key)
        draft = _make_draft_path(path, secrets.randbits(32))
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
        self._draft = _make_draft_path(path, attempt)
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
def _open_without_links(root: Path, names: list[str]) -> Generator[BinaryIO]:
    """Open a file without following any link below its bucket.

    Each directory is opened relative to its parent. The owner of the files may change them at any
    time, so it would not be safe to check a path first and open it later.
    """
    with ExitStack() as stack:
        parent = stack.enter_context(_open_directory(root, names[:-1]))
        # Without O_NONBLOCK, opening a FIFO would block until another process writes to it.
        descriptor = os.open(names[-1], os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=parent)
        stack.callback(os.close, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENXIO, "not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as content:
            yield content


@contextmanager
def _open_directory(root: Path, names: list[str]) -> Generator[int]:
    """Open a directory without following any link below the bucket, which is the first name."""
    with ExitStack() as stack:
        opened = os.open(root / names[0] if names else root, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, opened)
        for name in names[1:]:
            opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=opened)
            stack.callback(os.close, opened)
        yield opened


@contextmanager
def _delete_errors(key: str) -> Generator[None]:
    """Ignore a missing object. Raises NotAnObject if a link leads to the object."""
    with write_errors(key):
        try:
            yield
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                raise NotAnObject(f"{key} is not a file, or a link leads to it") from error
            raise


def _delete_files(directory: int, prefix: str, *, first: str, keep: Collection[str]) -> Deleted:
    """Delete the files, links and directories below an open directory, and count the objects."""
    sizes: list[int] = []
    _unlink(directory, first, prefix + first, keep, sizes)
    os.fsync(directory)  # a power failure must not bring back the marker without its files
    for path, directories, files, opened in os.fwalk(".", topdown=False, dir_fd=directory):
        below = prefix + f"{path}/".removeprefix("./")
        for name in files:
            _unlink(opened, name, below + name, keep, sizes)
        for name in directories:
            with suppress(OSError):  # not empty: it has an object to keep, or a new one
                _remove_directory(opened, name)
    return Deleted(len(sizes), sum(sizes))


def _unlink(parent: int, name: str, key: str, keep: Collection[str], sizes: list[int]) -> None:
    if key in keep:
        return
    with suppress(FileNotFoundError):
        size = os.lstat(name, dir_fd=parent).st_size
        os.unlink(name, dir_fd=parent)
        if "#" not in name:  # drafts are no objects
            sizes.append(size)


def _remove_directory(parent: int, name: str) -> None:
    try:
        os.rmdir(name, dir_fd=parent)
    except NotADirectoryError:  # the entry is a link to a directory
        os.unlink(name, dir_fd=parent)


def _make_draft_path(path: Path, number: int) -> Path:
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
        with suppress(PermissionError) if directory.parent == root else nullcontext():
            # A process that can use only the directory of one organisation did not create that directory.
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
