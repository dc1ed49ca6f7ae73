"""Errors of the object store. Callers see these, never a backend's own exceptions."""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager

from trace_etl.model.errors import TraceError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UnsupportedStore(TraceError):
    """The configured URL names no store that this release can use."""

    code = "unsupported_store"


class StorageError(TraceError):
    """The object store failed; the same call may succeed later."""

    code = "storage_unavailable"
    retryable = True


class StorageFull(StorageError):
    code = "storage_full"


class StorageUnwritable(StorageError):
    code = "storage_unwritable"


class ObjectMissing(StorageError):
    """There is no object under this key."""

    code = "object_missing"


class ObjectExists(StorageError):
    """A conditional put found an object under its key."""

    code = "object_exists"
    retryable = False


class ObjectTooLarge(StorageError):
    """The object has more bytes than the caller accepts."""

    code = "object_too_large"
    retryable = False


class NotAnObject(StorageError):
    """The key leads to a link, a directory or a device."""

    code = "not_an_object"
    retryable = False


class InvalidKey(StorageError):
    """The key or storage reference does not belong to this store."""

    code = "bad_reference"
    retryable = False


@contextmanager
def write_errors(uri: str) -> Generator[None]:
    """Turn an OSError, also one of an Arrow stream, into StorageFull or StorageUnwritable."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        kind = StorageFull if error.errno in _FULL else StorageUnwritable
        raise kind(f"cannot write {uri}: {reason}") from error
