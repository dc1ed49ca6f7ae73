"""Errors of the object store. Callers see these, never a backend's own exceptions."""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager

from trace_etl.model.errors import TraceError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UnsupportedStore(TraceError, code="unsupported_store"):
    """The configured URL names no store that this release can use."""


class StorageError(TraceError, code="storage_unavailable", retryable=True):
    """The object store failed; the same call may succeed later."""


class StorageFull(StorageError, code="storage_full"):
    """The disk or the quota is full."""


class StorageUnwritable(StorageError, code="storage_unwritable"):
    """The store refused a write, but not for lack of space."""


class StorageRefused(StorageError, code="storage_refused"):
    """The credentials, the bucket or a setting is wrong; a retry succeeds once it is corrected."""


class ObjectMissing(StorageError, code="object_missing"):
    """There is no object under this key."""


class ObjectExists(StorageError, code="object_exists", retryable=False):
    """A conditional put found an object under its key."""


class ObjectTooLarge(StorageError, code="object_too_large", retryable=False):
    """The object has more bytes than the caller accepts."""


class NotAnObject(StorageError, code="not_an_object", retryable=False):
    """The key names a link, a directory or a device instead of a file."""


class InvalidKey(StorageError, code="bad_reference", retryable=False):
    """The key or storage reference does not belong to this store."""


class FalseMarker(StorageError):
    """The success marker of an output does not match its files."""

    code = "false_marker"
    retryable = False


@contextmanager
def write_errors(uri: str) -> Generator[None]:
    """Convert an OSError, such as one of an Arrow stream, to StorageFull or StorageUnwritable."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        kind = StorageFull if error.errno in _FULL else StorageUnwritable
        raise kind(f"cannot write {uri}: {reason}") from error
