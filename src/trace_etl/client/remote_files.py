"""Read Parquet files by signed URLs, only the columns and row groups that are needed."""

import io
import ssl
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

_TIMEOUT = 60.0
_PARTIAL, _FORBIDDEN = 206, 403


class FilesUnreadable(OSError):
    """The object store refused to read a file of a snapshot."""


def open_dataset(urls: Sequence[str]) -> Any:
    """Return an Arrow dataset of the files. A file without a column has nulls in it."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    form = ds.ParquetFileFormat()
    context = ssl.create_default_context()
    files = [pa.PythonFile(cast(Any, RangeFile(url, context)), mode="r") for url in urls]
    fragments = [form.make_fragment(file) for file in files]
    schema = pa.unify_schemas([fragment.physical_schema for fragment in fragments])
    return ds.FileSystemDataset(fragments, schema, form)


class RangeFile(io.RawIOBase):
    """A remote object as a file. Each read is one request for its range of bytes."""

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        super().__init__()
        self._url: SplitResult = urlsplit(url)
        self._context = context
        self._connection: HTTPConnection | None = None
        self._position = 0
        self._size: int | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._find_size}
        start = base[whence]
        self._position = offset + (start() if callable(start) else start)
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        end = min(self._position + len(buffer), self._find_size())
        count = max(0, end - self._position)
        if count:
            with self._get(self._position, end) as response:
                content = response.read()
            if len(content) != count:
                raise FilesUnreadable(
                    f"the object store sent {len(content)} of {count} bytes; call scan() again"
                )
            buffer[:count] = content
            self._position = end
        return count

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        super().close()

    def _find_size(self) -> int:
        if self._size is None:
            with self._get(0, 1) as response:
                response.read()
                self._size = int(response.headers["content-range"].rpartition("/")[2])
        return self._size

    def _get(self, start: int, end: int) -> HTTPResponse:
        try:
            response = self._send(start, end)
        except (ConnectionError, HTTPException):  # the store has closed an idle connection
            self._connection = None
            response = self._send(start, end)
        if response.status == _PARTIAL:
            return response
        response.read()
        if response.status == _FORBIDDEN:
            raise FilesUnreadable("the addresses of the files have expired; call scan() again")
        raise FilesUnreadable(
            f"the object store answered with HTTP {response.status}; call scan() again"
        )

    def _send(self, start: int, end: int) -> HTTPResponse:
        if self._connection is None:
            self._connection = self._connect()
        path = f"{self._url.path}?{self._url.query}"
        self._connection.request("GET", path, headers={"range": f"bytes={start}-{end - 1}"})
        return self._connection.getresponse()

    def _connect(self) -> HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "http":
            return HTTPConnection(host, port, timeout=_TIMEOUT)
        return HTTPSConnection(host, port, timeout=_TIMEOUT, context=self._context)
