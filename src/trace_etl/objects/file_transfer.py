"""Read and write large objects of a FileStore in pieces. Methods block: call them in threads."""

import os
import secrets
from contextlib import ExitStack, suppress
from datetime import UTC, datetime

from trace_etl.objects.errors import write_errors
from trace_etl.objects.file_store import FileStore


class FileReader:
    """An open object. Its content stays readable if the object is replaced meanwhile."""

    def __init__(self, store: FileStore, key: str) -> None:
        """Open without following links. Raises ObjectMissing, NotAnObject or StorageError."""
        with ExitStack() as opening:
            self._descriptor = opening.enter_context(store.open_untrusted(key)).fileno()
            status = os.fstat(self._descriptor)
            self._open = opening.pop_all()
        self.size = status.st_size
        self.modified_at = datetime.fromtimestamp(status.st_mtime, UTC)
        self.etag = _make_etag(status)

    def read(self, start: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, start)

    def close(self) -> None:
        self._open.close()


def _make_etag(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


class FileUpload:
    """An object while it arrives. `publish` gives it its key; until then readers do not see it."""

    def __init__(self, store: FileStore, key: str) -> None:
        """Create the draft. Raises StorageFull or StorageUnwritable."""
        self._store, self._key = store, key
        self._draft = f"{key}#{secrets.token_hex(8)}"
        self.etag = ""
        path = store.path(self._draft)
        with write_errors(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("xb", buffering=0)

    def write(self, chunk: bytes) -> None:
        with write_errors(self._key):
            view = memoryview(chunk)
            while view:
                view = view[self._file.write(view) :]

    def finish(self) -> None:
        """Make the content durable."""
        with write_errors(self._key):
            os.fsync(self._file.fileno())
            self.etag = _make_etag(os.fstat(self._file.fileno()))
            self._file.close()

    def publish(self) -> None:
        """Give the object its key. Replaces the object that has it."""
        self._store.publish_draft(self._draft, self._key)

    def discard(self) -> None:
        """Remove the draft, if it was not published."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._store.path(self._draft).unlink(missing_ok=True)
