"""A minimal HTTP/1.1 server for JSON-RPC on httptools: only POST / with a JSON body."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias, cast

import httptools
import structlog

MAX_BODY_BYTES = 5 * 1024 * 1024
MAX_HEADER_BYTES = 32 * 1024
_MAX_QUEUED = 16
_LINGER_SECONDS = 2.0
_CLOSE = b"Connection: close\r\n"
_JSON_TYPES = frozenset({b"application/json", b"application/json-rpc", b"application/jsonrequest"})

AnswerRequest: TypeAlias = Callable[[bytes], Awaitable[bytes]]

log = structlog.get_logger()


class _Refusal(NamedTuple):
    status: bytes
    detail: bytes
    extra: bytes = b""


class _Refused(Exception):
    def __init__(self, refusal: _Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


_BAD_REQUEST = _Refusal(b"400 Bad Request", b"malformed HTTP request")
_NOT_FOUND = _Refusal(b"404 Not Found", b"the endpoint is /")
_NOT_POST = _Refusal(b"405 Method Not Allowed", b"only POST is allowed", b"Allow: POST\r\n")
_TOO_LARGE = _Refusal(b"413 Content Too Large", b"the request body is too large")
_NOT_JSON = _Refusal(b"415 Unsupported Media Type", b"only application/json is supported")
_LONG_HEADERS = _Refusal(b"431 Request Header Fields Too Large", b"the headers are too large")


class DevchainProtocol(asyncio.Protocol):
    """One connection. Clients may pipeline requests; the responses are sent in order."""

    def __init__(self, answer: AnswerRequest, connections: set["DevchainProtocol"]) -> None:
        self._answer = answer
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[tuple[bytes, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._refusal: _Refusal | None = None
        self._start_request()

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return  # the connection ends after the error response; further data is ignored
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(_NOT_POST)
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause.refusal if isinstance(cause, _Refused) else _BAD_REQUEST)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self._start_request()

    def on_url(self, url: bytes) -> None:
        self._count_header(len(url))
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header(len(name) + len(value))
        match name.lower():
            case b"content-type":
                self._content_type = value.split(b";")[0].strip().lower()
            case b"content-length":
                self._content_length = int(value)
            case b"expect":
                self._expects_continue = value.lower() == b"100-continue"
            case _:
                pass

    def on_headers_complete(self) -> None:
        if self._parser.get_method() != b"POST":
            raise _Refused(_NOT_POST)
        if self._url.split(b"?")[0] != b"/":
            raise _Refused(_NOT_FOUND)
        if self._content_type not in _JSON_TYPES:
            raise _Refused(_NOT_JSON)
        if self._content_length > MAX_BODY_BYTES:
            raise _Refused(_TOO_LARGE)
        if self._expects_continue and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > MAX_BODY_BYTES:
            raise _Refused(_TOO_LARGE)

    def on_message_complete(self) -> None:
        self._queue.append((bytes(self._body), self._parser.should_keep_alive()))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._answer_queued())
        if len(self._queue) > _MAX_QUEUED and self._transport is not None:
            self._transport.pause_reading()

    # Answering

    def _start_request(self) -> None:
        self._url = b""
        self._header_bytes = 0
        self._content_type = b""
        self._content_length = 0
        self._expects_continue = False
        self._body = bytearray()

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            raise _Refused(_LONG_HEADERS)

    async def _answer_queued(self) -> None:
        try:
            while self._queue and self._transport is not None:
                body, keep_alive = self._queue.popleft()
                answer = await self._answer(body)
                await self._writable.wait()
                self._send_answer(answer, keep_alive)
                if not keep_alive:
                    break
                self._transport.resume_reading()
        except Exception:
            log.exception("rpc_connection_failed")
            self.close()
        self._task = None
        if self._refusal is not None:
            self._send_refusal(self._refusal)

    def _refuse(self, refusal: _Refusal) -> None:
        """End the connection with an HTTP error, after the responses to earlier requests."""
        self._refusal = refusal
        if self._task is None:
            self._send_refusal(refusal)

    def _send_answer(self, body: bytes, keep_alive: bool) -> None:
        self._send(b"200 OK", b"application/json", body, b"" if keep_alive else _CLOSE)
        if not keep_alive:
            self.close()

    def _send_refusal(self, refusal: _Refusal) -> None:
        self._send(refusal.status, b"text/plain", refusal.detail + b"\n", refusal.extra + _CLOSE)
        if self._transport is not None:
            # Closing while the client still sends would reset the connection, and the client would
            # not see the response. Close only our side, and discard data until the client closes.
            self._transport.write_eof()
            asyncio.get_running_loop().call_later(_LINGER_SECONDS, self.close)

    def _send(self, status: bytes, media: bytes, body: bytes, extra: bytes) -> None:
        if self._transport is None:
            return
        head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b\r\n"
        self._transport.write(head % (status, media, len(body), extra))
        if body:
            self._transport.write(body)
