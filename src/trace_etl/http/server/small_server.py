"""A small HTTP/1.1 server for RPC calls: it reads the whole body and writes the answer at one time.

It leaves out ASGI, upgrades and per-request objects, which take a third of the time of a small call
(decision 0002). An app may stream the bodies of some requests and answers, which are objects.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from http import HTTPStatus
from typing import NamedTuple, Protocol, cast

import httptools
import structlog

from trace_etl.http.body_stream import MAX_BUFFERED, BodyStream
from trace_etl.http.server.connection_limits import (
    ConnectionLimits,
    LimitExceeded,
    RequestMeter,
    render_refusal,
)

MAX_BODY_BYTES = 1024 * 1024
_MAX_WAITING = 16
_STATUS = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_CLOSE = b"connection: close\r\n\r\n"
_log = structlog.stdlib.get_logger()


class RpcAnswer(NamedTuple):
    """A rendered HTTP response."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    media_type: bytes = b"application/json"
    length: int | None = None
    """The length of the content, if it is not in `body`: for HEAD, or with `stream`."""
    stream: AsyncGenerator[bytes] | None = None
    """The content, exactly `length` bytes. The connection is aborted if it fails."""


class RpcRequest:
    """A request. A body above the limit is left out, and the app refuses the request."""

    __slots__ = ("body", "has_large_body", "headers", "keep_alive", "method", "stream", "url")

    def __init__(self) -> None:
        self.url = b""
        self.method = ""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.has_large_body = False
        self.keep_alive = True
        self.stream: BodyStream | None = None

    def target(self) -> tuple[str, bytes]:
        """Return the path and the query string."""
        path, _, query = self.url.partition(b"?")
        return path.decode("latin-1"), query


class RpcApp(Protocol):
    """An app that the small server calls. `answer` must not raise."""

    async def answer(self, request: RpcRequest) -> RpcAnswer: ...


class SmallHttpProtocol(asyncio.Protocol):
    """One client connection. Pipelined requests are answered in order."""

    def __init__(
        self,
        app: RpcApp,
        limits: ConnectionLimits,
        on_end: Callable[[], None],
        *,
        max_body: int = MAX_BODY_BYTES,
        streams_body: Callable[[str, str], bool] = lambda method, path: False,
    ) -> None:
        """`streams_body` says whether the app reads the body of a method and path as a stream."""
        self.meter: RequestMeter | None = None
        self._app = app
        self._limits = limits
        self._on_end = on_end
        self._max_body = max_body
        self._streams_body = streams_body
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._request = RpcRequest()
        self._body = bytearray()
        self._expects_continue = False
        self._waiting: deque[RpcRequest] = deque()
        self._refusal: HTTPStatus | None = None
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._ignores_input = False
        self._closing = False

    # --- callbacks of the transport -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.meter = RequestMeter(self._limits, self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        # Let the running request finish: its item may be part of a batch with other callers' items.
        self._transport = None
        # The parser refers to this protocol: once it is gone, the protocol is freed without the garbage collector.
        self._parser = cast("httptools.HttpRequestParser", None)
        self._waiting.clear()
        self._writable.set()
        self._lose_body()
        if self._task is None:
            self._on_end()

    def eof_received(self) -> bool:
        """Answer what was received; keep a plain TCP connection open until then."""
        self.shutdown()
        return self._transport is not None and self._transport.can_write_eof()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._get_meter().note_drained()
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        meter = self._get_meter()
        meter.receive(len(data))
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not isinstance(error.__context__, LimitExceeded):
                self.refuse(HTTPStatus.BAD_REQUEST)
        except httptools.HttpParserUpgrade:  # the request that asks for an upgrade was submitted
            self._ignores_input = True
            self.shutdown()
        else:
            if meter.has_endless_field:
                self.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def shutdown(self) -> None:
        """Finish the running requests, then close."""
        self._closing = True
        if self._task is None:
            self._close()

    # --- callbacks of the parser --------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._get_meter().begin()
        self._request = RpcRequest()
        self._body = bytearray()
        self._expects_continue = False

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        self._request.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        name = name.lower()
        self._request.headers.append((name, value))
        if name == b"expect":
            self._expects_continue = value.lower() == b"100-continue"
        elif name == b"content-length" and value.isdigit() and int(value) > self._max_body:
            self._request.has_large_body = True

    def on_headers_complete(self) -> None:
        method = self._parser.get_method().decode()
        if self._streams_body(method, self._request.target()[0]):
            self._request.has_large_body = False
            self._request.stream = BodyStream(self._continue_reading)
            self._submit()
            return
        if self._request.has_large_body:
            self._submit_incomplete()
        if self._expects_continue and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._get_meter().add_body(len(body))
        if self._request.stream is not None:
            self._stream_body(self._request.stream, body)
            return
        self._body += body
        if len(self._body) > self._max_body:
            self._request.has_large_body = True
            self._submit_incomplete()

    def on_message_complete(self) -> None:
        self._get_meter().end()
        self._request.keep_alive = self._request.keep_alive and self._parser.should_keep_alive()
        if self._request.stream is not None:
            self._request.stream.finish()
            return
        self._request.body = bytes(self._body)
        self._submit()

    # --- streamed bodies ----------------------------------------------------------------------

    def _stream_body(self, stream: BodyStream, body: bytes) -> None:
        stream.feed(body)
        self._get_meter().note_progress(len(body))
        if stream.buffered > MAX_BUFFERED and self._transport is not None:
            self._transport.pause_reading()

    def _continue_reading(self) -> None:
        """Read on, and ask a client that waits for permission to send its body."""
        if self._transport is None:
            return
        self._transport.resume_reading()
        if self._expects_continue:
            self._expects_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _lose_body(self) -> None:
        if self._request.stream is not None:
            self._request.stream.lose()

    def _count_head(self, size: int) -> None:
        if not self._get_meter().add_head(size):
            self.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            raise LimitExceeded

    def _submit_incomplete(self) -> None:
        """Pass a request with a large body to the app, which refuses it, and stop reading."""
        self._ignores_input = True
        self._request.keep_alive = False
        self._submit()
        raise LimitExceeded

    def _get_meter(self) -> RequestMeter:
        assert self.meter is not None
        return self.meter

    # --- answering --------------------------------------------------------------------------

    def _submit(self) -> None:
        self._request.method = self._parser.get_method().decode()
        self._waiting.append(self._request)
        if len(self._waiting) > _MAX_WAITING and self._transport is not None:
            self._transport.pause_reading()
        if self._task is None:
            self._task = self._loop.create_task(self._answer_all())

    async def _answer_all(self) -> None:
        try:
            while self._waiting:
                request = self._waiting.popleft()
                await self._answer(request)
                if self._transport is not None:
                    self._transport.resume_reading()
                if not request.keep_alive:
                    self._waiting.clear()
                    self._closing = True
        finally:
            self._end_task()

    def _end_task(self) -> None:
        self._task = None
        if self._transport is None:
            self._on_end()
        elif self._refusal is not None:
            self.refuse(self._refusal)
        elif self._closing:
            self._close()

    async def _answer(self, request: RpcRequest) -> None:
        answer = await self._app.answer(request)
        if request.stream is not None and not request.stream.is_complete:
            request.keep_alive = False  # refused before the whole body arrived
            self._ignores_input = True
        if not self._writable.is_set():
            await self._writable.wait()
        self._write(request, answer)
        if answer.stream is not None:
            await self._write_stream(answer.stream)
        self._get_meter().answer()

    async def _write_stream(self, stream: AsyncGenerator[bytes]) -> None:
        """Write the chunks at the speed of the client. A failed stream aborts the connection."""
        is_whole = False
        try:
            async for chunk in stream:
                await self._writable.wait()
                if self._transport is None:
                    return
                self._transport.write(chunk)
            is_whole = True
        except Exception:
            _log.exception("stream_failed")
        finally:
            await stream.aclose()
            if not is_whole and self._transport is not None:
                self._transport.abort()

    def _write(self, request: RpcRequest, answer: RpcAnswer) -> None:
        if self._transport is None:
            return
        close = not request.keep_alive or (self._closing and not self._waiting)
        lines = [
            _STATUS[answer.status],
            b"content-type: %b\r\ncontent-length: %d\r\n"
            % (answer.media_type, len(answer.body) if answer.length is None else answer.length),
            *(b"%b: %b\r\n" % pair for pair in answer.headers),
            _CLOSE if close else b"\r\n",
            b"" if request.method == "HEAD" else answer.body,
        ]
        self._transport.write(b"".join(lines))

    def refuse(self, status: HTTPStatus) -> None:
        """Answer an unreadable request with a plain error after the earlier answers, and close."""
        self._ignores_input = True
        self._lose_body()
        if self._task is not None:
            self._refusal = status
        elif self._transport is not None and not self._get_meter().is_closed:
            self._transport.write(render_refusal(status))
            self._close()

    def _close(self) -> None:
        self._ignores_input = True
        if self.meter is not None:
            self.meter.close()
