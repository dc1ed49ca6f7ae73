"""Call one JSON-RPC endpoint over a persistent connection."""

import base64
import http.client
import socket
import ssl
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from math import inf
from threading import Event, Lock, Timer
from urllib.parse import unquote, urlsplit

from trace_etl.spark.errors import BadTask

_CONNECT_SECONDS = 5.0
# Far above the answers of real nodes: their batches are chosen so that they have about 4 MB.
_MAX_BYTES = 1 << 28
_MAX_TIMEOUTS = 10  # a node that sends single bytes must not keep a task waiting forever
_PIECE = 1 << 20
_GZIP_PIECE = 1 << 16
_MAX_GZIP_MEMBERS = (
    10_000  # servers send one; empty members cost time, and never reach the limit of bytes
)


class RateLimit:
    """Spaces calls evenly. All connections to one endpoint share it."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._free_at = 0.0
        self._lock = Lock()

    def wait(self, calls: int, stop: Event) -> None:
        """Wait until this number of calls may be sent, or until `stop` is set."""
        with self._lock:
            begin = max(time.monotonic(), self._free_at)
            self._free_at = begin + calls / self._per_second
        stop.wait(max(0.0, begin - time.monotonic()))


@cache
def shared_rate_limit(url: str, per_second: float) -> RateLimit:
    """Return the rate limit of a URL, one per process."""
    return RateLimit(per_second)


@dataclass(frozen=True)
class RpcResponse:
    """An HTTP response of an endpoint."""

    status: int
    body: bytes
    retry_after: float | None


class Endpoint:
    """A URL and the connection to it. Not safe for use from several threads.

    User info, path and query can contain API keys, so messages show only `label`. The fragment is
    never sent: `#calls_per_second=25` limits the rate of calls from this process.
    """

    def __init__(self, url: str, *, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadTask("RPC endpoint: must be an http:// or https:// URL")
        self.url = url
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = parts.port or (443 if self._tls else 80)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._timeout = timeout
        self._rate_limit = _parse_rate_limit(url, parts.fragment)
        self._headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "gzip",
            **_make_authorization(parts),
        }
        self._connection: http.client.HTTPConnection | None = None

    @property
    def label(self) -> str:
        return f"{self._host}:{self._port}"

    def wait_for_turn(self, calls: int, stop: Event) -> None:
        """Wait until this number of calls may be sent, or until `stop` is set."""
        if self._rate_limit is not None:
            self._rate_limit.wait(calls, stop)

    def post(self, body: bytes) -> RpcResponse:
        """Send one request and read the whole response. Raises OSError or HTTPException."""
        if self._connection is not None:
            try:
                return self._exchange(self._connection, body)
            except (http.client.RemoteDisconnected, ConnectionError):
                self.close()  # the server had closed an idle connection
        self._connection = self._connect()
        return self._exchange(self._connection, body)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def interrupt(self) -> None:
        """Abort a read that blocks in another thread."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):  # the other thread may have closed it
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes) -> RpcResponse:
        # The timeout of the socket ends a silence. This ends an answer that never ends.
        watch = Timer(_MAX_TIMEOUTS * self._timeout, self.interrupt)
        watch.daemon = True
        watch.start()
        try:
            connection.request("POST", self._target, body, self._headers)
            response = connection.getresponse()
            body = _read_body(response)
            if response.headers.get("Content-Encoding", "").lower() == "gzip":
                body = _decompress(body)
            wait = parse_retry_after(response.headers.get("Retry-After", ""))
            return RpcResponse(response.status, body, wait)
        except zlib.error as error:
            self.close()
            raise http.client.HTTPException(f"damaged gzip content: {error}") from error
        except BaseException:
            self.close()
            raise
        finally:
            watch.cancel()

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            connection = http.client.HTTPConnection(
                self._host, self._port, timeout=_CONNECT_SECONDS
            )
        else:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=_CONNECT_SECONDS, context=self._tls
            )
        connection.connect()
        assert connection.sock is not None
        connection.sock.settimeout(self._timeout)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _read_body(response: http.client.HTTPResponse) -> bytes:
    """Read a body of limited size. Raises HTTPException."""
    announced = response.length
    if announced is not None:
        _check_size(announced)
        body = response.read(announced)
        if len(body) < announced:
            raise http.client.IncompleteRead(b"", announced - len(body))
        return body
    # `read` would read a chunk of negative size up to the end of the connection.
    buffer = memoryview(bytearray(_PIECE))
    pieces: list[bytes] = []
    size = 0
    while count := response.readinto(buffer):
        pieces.append(bytes(buffer[:count]))
        size += count
        _check_size(size)
    return b"".join(pieces)


def _check_size(size: int) -> None:
    if size > _MAX_BYTES:
        raise http.client.HTTPException(f"an answer of more than {_MAX_BYTES >> 20} MiB")


def _decompress(body: bytes) -> bytes:
    """Decompress gzip content to a limited size. Raises zlib.error or HTTPException."""
    view, at = memoryview(body), 0
    pieces: list[bytes] = []
    size = members = 0
    while at < len(view):
        members += 1
        if members > _MAX_GZIP_MEMBERS:
            raise http.client.HTTPException(f"gzip content of more than {_MAX_GZIP_MEMBERS} parts")
        reader = zlib.decompressobj(wbits=31)
        while not reader.eof:
            if at == len(view):
                raise zlib.error("the content ends too early")
            piece = view[at : at + _GZIP_PIECE]
            pieces.append(reader.decompress(piece, _MAX_BYTES - size + 1))
            size += len(pieces[-1])
            _check_size(size)
            at += len(piece) - len(reader.unused_data)
    return b"".join(pieces)


def parse_retry_after(text: str) -> float | None:
    """The seconds to wait: a number, or an HTTP date. None if it is neither."""
    try:
        if text.isdecimal():
            return float(text)
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _parse_rate_limit(url: str, fragment: str) -> RateLimit | None:
    if not fragment:
        return None
    name, _, limit = fragment.partition("=")
    try:
        per_second = float(limit)
    except ValueError:
        per_second = 0.0
    if name != "calls_per_second" or not 0 < per_second < inf:
        raise BadTask(
            "RPC endpoint: the only fragment allowed in the URL is #calls_per_second=N with N "
            "above 0"
        )
    return shared_rate_limit(url, per_second)


def _make_authorization(parts: object) -> dict[str, str]:
    user, password = getattr(parts, "username", None), getattr(parts, "password", None)
    if user is None:
        return {}
    pair = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
