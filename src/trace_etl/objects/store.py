"""The interface of an object store.

A key is `bucket/path/name`, without empty parts, `.` or `..`. Stores are small values that can be
pickled: Spark sends them to executors.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, Self
from uuid import UUID

from trace_etl.model.storage import StorageRef
from trace_etl.objects.errors import InvalidKey


@dataclass(frozen=True)
class ObjectInfo:
    """One entry of a listing."""

    key: str
    size: int
    modified_at: datetime


@dataclass(frozen=True)
class Deleted:
    """What a deletion removed."""

    objects: int
    bytes: int


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

    def org_root(self, org_id: UUID) -> str:
        """The `bucket` of storage references of an organisation: a bucket, or `bucket/prefix`."""
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

    def get_untrusted_range(self, key: str, *, start: int, length: int) -> bytes:
        """Read part of an object that untrusted code may have written, like `get_range`.

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

    def delete_prefix(
        self, prefix: str, *, first: str, keep: Collection[str] = frozenset()
    ) -> Deleted:
        """Delete everything under a prefix that ends in a slash, except the keys in `keep`.

        The object named `first` is deleted before the others, so that an interrupted deletion leaves
        no prefix with its marker. Also removes what interrupted writes left. Does not follow links.
        A missing prefix has nothing to delete.
        """
        ...

    def open_writer(self, key: str, *, attempt: int = 0) -> ObjectWriter:
        """Start to write a large object. `commit` makes it durable.

        Concurrent writers of one key need different attempts.
        """
        ...

    def read_urls(self, keys: Sequence[str], *, life: timedelta) -> tuple[str, ...]:
        """Addresses from which a process without credentials can read the objects for some time.

        They may have a signature: keep them out of logs and messages.
        """
        ...

    def jvm_path(self, key: str) -> str | None:
        """The path from which Spark's JVM reads the object; None if only `open_input` can read it."""
        ...

    def open_input(self, key: str) -> Any:
        """Open an object as an Arrow file for random access."""
        ...

    def probe_key(self) -> str:
        """A fresh key for a short-lived object that tests access to the store."""
        ...


def object_key(store: ObjectStore, ref: StorageRef, name: str) -> str:
    """The key of a file under a storage reference. Raises InvalidKey."""
    if ref.scheme != store.scheme:
        raise InvalidKey(
            f"storage scheme {ref.scheme} is not that of {store.url}, the store of this process"
        )
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
