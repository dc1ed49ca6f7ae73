"""The interface of an object store.

A key is `bucket/path/name`, without empty parts, `.` or `..`. Stores are small values that can be
pickled: Spark sends them to executors.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, Self

from trace_etl.model.storage import StorageRef
from trace_etl.objects.errors import InvalidKey


@dataclass(frozen=True)
class ObjectInfo:
    """One entry of a listing."""

    key: str
    size: int
    modified_at: datetime


class ObjectWriter(Protocol):
    """An object while it is written. Leaving the context without `commit` discards it."""

    @property
    def name(self) -> str:
        """The last part of the key."""
        ...

    @property
    def stream(self) -> Any:
        """The Arrow output stream to write to."""
        ...

    def errors(self) -> AbstractContextManager[None]:
        """Convert errors of the stream to StorageFull or StorageUnwritable."""
        ...

    def commit(self) -> int:
        """Close the stream and give the object its key. Returns its size in bytes."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *failure: object) -> None: ...


class ObjectStore(Protocol):
    """Objects by key. Every method may raise StorageError, and InvalidKey for a bad key."""

    @property
    def scheme(self) -> str:
        """The scheme of storage references to this store."""
        ...

    @property
    def url(self) -> str:
        """The URL that the store was opened from."""
        ...

    def get(self, key: str) -> bytes:
        """Read an object. Raises ObjectMissing."""
        ...

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        """Read part of an object; fewer bytes if the object ends before. Raises ObjectMissing."""
        ...

    def get_untrusted(self, key: str, *, max_bytes: int) -> bytes:
        """Read an object that untrusted code may have written and may still change.

        Raises ObjectMissing, ObjectTooLarge, or NotAnObject for a link or a device.
        """
        ...

    def get_untrusted_tail(self, key: str, *, max_bytes: int) -> tuple[int, bytes]:
        """Return the size and the last bytes of an object that untrusted code may have written.

        Raises ObjectMissing, or NotAnObject for a link or a device.
        """
        ...

    def put(self, key: str, content: bytes) -> None:
        """Write an object durably and atomically. Replaces an existing object."""
        ...

    def create(self, key: str, content: bytes) -> None:
        """Write an object like `put`. Raises ObjectExists if the key is taken."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List all objects under a prefix that ends in a slash, in no particular order."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object; deleting a missing one does nothing."""
        ...

    def open_writer(self, key: str, *, attempt: int = 0) -> ObjectWriter:
        """Start to write a large object. `commit` makes it durable.

        Concurrent writers of one key need different attempts.
        """
        ...

    def uri(self, key: str) -> str:
        """The address from which Spark and DuckDB read the object."""
        ...

    def arrow_path(self, key: str) -> str:
        """The object's path in `arrow_filesystem`."""
        ...

    def arrow_filesystem(self) -> Any:
        """A pyarrow file system that reads the objects."""
        ...

    def probe_key(self) -> str:
        """A fresh key for a short-lived object that tests access to the store."""
        ...


def object_key(store: ObjectStore, ref: StorageRef, name: str) -> str:
    """The key of a file under a storage reference. Raises InvalidKey."""
    if ref.scheme != store.scheme:
        raise InvalidKey(f"storage scheme {ref.scheme}: this process uses {store.url}")
    if "/" in name:
        raise InvalidKey(f"{ref.url} lists {name}, which is outside of it")
    return check_key(f"{ref.bucket}/{ref.prefix}{name}")


def check_key(key: str) -> str:
    """Return the key. Raises InvalidKey if one of its parts is empty, `.` or `..`, or has a NUL."""
    if {"", ".", ".."} & set(key.split("/")) or "\x00" in key:
        raise InvalidKey(
            f"storage key {key!r} leads out of its bucket or has an empty part or a NUL"
        )
    return key
