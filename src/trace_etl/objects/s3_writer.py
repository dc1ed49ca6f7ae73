"""A large object, uploaded to S3 in parts while it is written."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from queue import Queue
from threading import Thread
from typing import Any, Self

from trace_etl.objects.errors import StorageError

PART_BYTES = 8 * 1024 * 1024
_MAX_WAITING = 2  # parts in memory that wait for the upload
_Upload = Callable[[Any], object]


class _Discarded(Exception):
    """Ends an upload. S3 forgets its parts."""


class S3Writer:
    """Keeps up to one part in memory; from there on a thread uploads parts as they fill.

    S3 shows the object only when the upload is completed, and an upload that fails is aborted.
    """

    def __init__(
        self, name: str, upload: _Upload, errors: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._name, self._upload, self._errors = name, upload, errors
        self._held = bytearray()
        self._size = 0
        self._parts: Queue[bytes | None] = Queue(_MAX_WAITING)
        self._thread: Thread | None = None
        self._failure: BaseException | None = None
        self._is_discarded = False
        self.stream: Any = None

    def __enter__(self) -> Self:
        import pyarrow as pa  # the Dispatcher does not load pyarrow

        self.stream = pa.PythonFile(_Sink(self._write), mode="w")
        return self

    @property
    def name(self) -> str:
        return self._name

    def errors(self) -> AbstractContextManager[None]:
        return self._errors()

    def commit(self) -> int:
        with self._errors():
            self.stream.close()
            if self._thread is None:
                self._upload(bytes(self._held))
            else:
                self._put_part(bytes(self._held))
                self._finish()
        self._held.clear()
        return self._size

    def __exit__(self, *failure: object) -> None:
        self._is_discarded = True
        with suppress(StorageError):
            self._finish()

    def _write(self, content: bytes) -> int:
        """Take bytes from Arrow. Raises the error of the upload."""
        self._held += content
        self._size += len(content)
        while len(self._held) >= PART_BYTES:
            self._put_part(bytes(self._held[:PART_BYTES]))
            del self._held[:PART_BYTES]
        return len(content)

    def _put_part(self, part: bytes) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._run, name="s3-upload", daemon=True)
            self._thread.start()
        if self._failure is not None:
            raise self._failure
        self._parts.put(part)

    def _finish(self) -> None:
        """End the upload and wait for it. Raises its error."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._parts.put(None)
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        """Runs in the thread. After a failure it takes parts until the writer notices."""
        try:
            self._upload(self._list_parts())
        except _Discarded:
            return
        except BaseException as error:  # the writer raises it again
            self._failure = error
            while self._parts.get() is not None:
                pass

    def _list_parts(self) -> Iterator[bytes]:
        while (part := self._parts.get()) is not None:
            yield part
        if self._is_discarded:
            raise _Discarded


class _Sink:
    """The file object behind an Arrow stream."""

    closed = False

    def __init__(self, write: Callable[[bytes], int]) -> None:
        self.write = write

    def flush(self) -> None:
        """Parts are uploaded when they are full."""

    def close(self) -> None:
        """Closing does not complete the object: Arrow also closes streams that it drops."""
        self.closed = True
