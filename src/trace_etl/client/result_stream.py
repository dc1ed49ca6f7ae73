"""Receive results of queries in large pieces, over connections of their own.

A result of a million rows has thousands of TLS records. The client of other calls parses each of
them in Python, which takes longer than the query.
"""

import json
import ssl
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, cast
from urllib.parse import urlsplit

from trace_etl.client.stored_columns import ReceiveMemory, read_schema, read_tables
from trace_etl.model.column_stream import MAGIC

_ERRORS = (OSError, HTTPException)
_PIECE = 256 * 1024
ARROW_START = b"\xff\xff\xff\xff"  # the first bytes of an Arrow stream


class CannotConnect(Exception):
    """The service does not accept connections."""


class ConnectionEnded(Exception):
    """The connection ended before the answer, or in the middle of it."""


class _WasClosed(ConnectionError):
    """The service had closed the connection. It closes those that are idle for long."""


class ResultBody:
    """A result that is being received."""

    def __init__(self, response: HTTPResponse, memory: ReceiveMemory) -> None:
        self.response, self._memory = response, memory

    @property
    def pinned(self) -> list[dict[str, Any]]:
        """The dataset generations that the query reads."""
        return cast(list[dict[str, Any]], json.loads(self.response.headers["trace-pinned"] or "[]"))

    def pieces(self) -> Iterator[bytes]:
        """Yield the encoded result. It is complete only if this ends without ConnectionEnded."""
        while piece := self._read_piece():
            yield piece

    def open_columns(self) -> tuple[Any, Iterator[Any]]:
        """Return the schema of a result in the format `columns`, and its tables or record batches."""
        import pyarrow as pa

        source = _BufferReader(self.response)
        if source.read_exactly(len(MAGIC)) == MAGIC:
            schema = read_schema(source)
            return schema, read_tables(source, schema, self._memory)
        source.unread(ARROW_START)
        reader = pa.ipc.open_stream(pa.PythonFile(cast(Any, source), mode="r"))
        return reader.schema, reader

    def finish(self) -> None:
        """Read the end of the result. Raises ConnectionEnded if it is incomplete."""
        for _ in self.pieces():
            pass

    def _read_piece(self) -> bytes:
        with _translate_errors():
            return self.response.read1(_PIECE)


class _BufferReader:
    """A file that reads each part of an Arrow stream into the memory of the result."""

    closed = False

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response
        self._unread = b""

    def unread(self, content: bytes) -> None:
        """Let the next `read` return bytes that were read already."""
        self._unread = content

    def read(self, size: int) -> bytes:
        begin, self._unread = self._unread[:size], self._unread[size:]
        with _translate_errors():
            return begin + self._response.read(size - len(begin))

    def read_exactly(self, size: int) -> bytes:
        content = self.read(size)
        if len(content) < size:
            raise ConnectionEnded("the result is incomplete")
        return content

    def fill(self, buffer: memoryview) -> None:
        filled = 0
        while filled < len(buffer):
            with _translate_errors():
                received = self._response.readinto(buffer[filled:])
            if not received:
                raise ConnectionEnded("the result is incomplete")
            filled += received

    def read_buffer(self, size: int) -> Any:
        """Called by Arrow instead of `read` for messages and their columns."""
        import pyarrow as pa

        if self._unread:
            return pa.py_buffer(self.read(size))
        buffer = pa.allocate_buffer(size, resizable=True)
        with _translate_errors():
            received = self._response.readinto(cast(Any, memoryview(buffer)))
        if received < size:
            buffer.resize(received)
        return buffer


@contextmanager
def _translate_errors() -> Generator[None]:
    try:
        yield
    except _ERRORS as error:
        raise ConnectionEnded(str(error) or repr(error)) from error


class ResultConnections:
    """Connections to the Query Service. Each carries one result at a time. Thread-safe."""

    def __init__(self, url: str, headers: dict[str, str], context: ssl.SSLContext) -> None:
        self._url, self._headers, self._context = urlsplit(url), headers, context
        self._idle: list[HTTPConnection] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self.memory = ReceiveMemory()

    @contextmanager
    def post(self, path: str, body: object, timeout: float) -> Generator[HTTPResponse]:
        """Send a request whose answer changes nothing. A result that is not read whole is stopped.

        Raises CannotConnect or ConnectionEnded.
        """
        conn, response = self._send(path, json.dumps(body).encode(), timeout)
        is_complete = False
        try:
            yield response
            # `read1` does not close a response of a known length, in some releases of Python.
            is_complete = response.isclosed() or response.length == 0
            is_complete = is_complete and not response.will_close
        finally:
            response.close()
            self._give_back(conn) if is_complete else conn.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for conn in idle:
            conn.close()

    def _send(
        self, path: str, content: bytes, timeout: float
    ) -> tuple[HTTPConnection, HTTPResponse]:
        while (conn := self._take()) is not None:
            with suppress(_WasClosed):
                return conn, self._exchange(conn, path, content)
        conn = self._connect(timeout)
        with _translate_errors():
            return conn, self._exchange(conn, path, content)

    def _exchange(self, conn: HTTPConnection, path: str, content: bytes) -> HTTPResponse:
        headers = {**self._headers, "content-type": "application/json"}
        try:
            conn.request("POST", self._url.path + path, content, headers)
            return conn.getresponse()
        except (ConnectionError, ssl.SSLError) as error:
            conn.close()
            raise _WasClosed(str(error)) from error
        except BaseException:
            conn.close()
            raise

    def _connect(self, timeout: float) -> HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "http":
            conn = HTTPConnection(host, port, timeout=timeout)
        else:
            conn = HTTPSConnection(host, port, timeout=timeout, context=self._context)
        try:
            conn.connect()
        except OSError as error:
            conn.close()
            raise CannotConnect(str(error)) from error
        return conn

    def _take(self) -> HTTPConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give_back(self, conn: HTTPConnection) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(conn)
                return
        conn.close()
