"""A small HTTP/1.1 server for RPC calls: it reads the whole body and writes the answer at one time.

`SmallHttpProtocol` runs inside uvicorn, which provides the listener, TLS and the shutdown. It leaves out ASGI,
streaming, upgrades and per-request objects, which take more than half of the time of a small call.
"""

import asyncio
from collections import deque
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol, cast

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

MAX_HEADER_BYTES = 32 * 1024
MAX_BODY_BYTES = 1024 * 1024
_MAX_WAITING = 16
_LINGER_SECONDS = 2.0
_STATUS = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_CLOSE = b"connection: close\r\n\r\n"


class RpcAnswer(NamedTuple):
    """A rendered HTTP response."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    media_type: bytes = b"application/json"


class RpcRequest:
    """A request as far as it has been received."""

    __slots__ = ("body", "headers", "keep_alive", "method", "size", "url")

    def __init__(self) -> None:
        self.url = b""
        self.method = ""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.size = 0
        self.keep_alive = True

    def target(self) -> tuple[str, bytes]:
        """Return the path and the query string."""
        path, _, query = self.url.partition(b"?")
        return path.decode("latin-1"), query


class RpcApp(Protocol):
    """An app that the small server calls. `answer` must not raise."""

    async def answer(self, request: RpcRequest) -> RpcAnswer: ...


class _LimitExceeded(Exception):
    """Raised in a parser callback to stop the parser."""


class SmallHttpProtocol(asyncio.Protocol):
    """One client connection. Pipelined requests are answered in order."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = cast("RpcApp", config.loaded_app)  # pyright: ignore[reportUnknownMemberType]
        self._state = server_state
        self._idle_seconds = config.timeout_keep_alive
        self._loop = _loop or asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._request = RpcRequest()
        self._waiting: deque[RpcRequest] = deque()
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._last_activity = 0.0
        self._ignores_input = False
        self._closing = False

    # --- callbacks of the transport -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._state.connections.add(cast("Any", self))
        self._last_activity = self._loop.time()
        self._check_idle_after(self._idle_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        # Let the running request finish: its item may be part of a batch with other callers' items.
        self._state.connections.discard(cast("Any", self))
        self._transport = None
        self._waiting.clear()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        self._last_activity = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._ignores_input = True
            if not isinstance(error.__context__, _LimitExceeded):
                self._refuse(HTTPStatus.BAD_REQUEST)
        except httptools.HttpParserUpgrade:
            self._ignores_input = True
            self._refuse(HTTPStatus.BAD_REQUEST)

    def shutdown(self) -> None:
        """Finish the running requests, then close. Called by uvicorn on shutdown."""
        self._closing = True
        if self._task is None:
            self._close()

    # --- callbacks of the parser --------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._request = RpcRequest()

    def on_url(self, url: bytes) -> None:
        self._request.url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._request.headers.append((name, value))
        self._count(len(name) + len(value))
        if name == b"expect" and value.lower() == b"100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if name == b"content-length" and value.isdigit() and int(value) > MAX_BODY_BYTES:
            self._too_large()

    def on_body(self, body: bytes) -> None:
        self._request.body += body
        if len(self._request.body) > MAX_BODY_BYTES:
            self._too_large()

    def on_message_complete(self) -> None:
        self._request.keep_alive = self._parser.should_keep_alive()
        self._submit()

    def _count(self, size: int) -> None:
        self._request.size += size
        if self._request.size > MAX_HEADER_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            raise _LimitExceeded

    def _too_large(self) -> None:
        """Pass the incomplete request to the app, which refuses it, and stop reading."""
        self._request.keep_alive = False
        self._request.method = self._parser.get_method().decode()
        self._waiting.append(self._request)
        self._start()
        raise _LimitExceeded

    # --- answering --------------------------------------------------------------------------

    def _submit(self) -> None:
        self._request.method = self._parser.get_method().decode()
        self._waiting.append(self._request)
        if len(self._waiting) > _MAX_WAITING and self._transport is not None:
            self._transport.pause_reading()
        self._start()

    def _start(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._answer_all())
            self._state.tasks.add(self._task)
            self._task.add_done_callback(self._state.tasks.discard)

    async def _answer_all(self) -> None:
        try:
            while self._waiting:
                request = self._waiting.popleft()
                await self._answer(request)
                if self._transport is not None:
                    self._transport.resume_reading()
                if self._closing or not request.keep_alive:
                    self._close()
                    return
        finally:
            self._task = None
            self._last_activity = self._loop.time()

    async def _answer(self, request: RpcRequest) -> None:
        self._state.total_requests += 1
        answer = await self._app.answer(request)
        if not self._writable.is_set():
            await self._writable.wait()
        self._write(answer, close=self._closing or not request.keep_alive)

    def _write(self, answer: RpcAnswer, *, close: bool) -> None:
        if self._transport is None:
            return
        lines = [
            _STATUS[answer.status],
            b"content-type: %b\r\ncontent-length: %d\r\n" % (answer.media_type, len(answer.body)),
            *(b"%b: %b\r\n" % pair for pair in answer.headers),
            _CLOSE if close else b"\r\n",
            answer.body,
        ]
        self._transport.write(b"".join(lines))

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer an unreadable request with a plain error and close the connection."""
        self._ignores_input = True
        answer = RpcAnswer(status.phrase.encode(), status.value, media_type=b"text/plain")
        self._write(answer, close=True)
        self._close()

    def _close(self) -> None:
        """Close after the written data was sent. Abort later if the client does not close its side."""
        self._ignores_input = True
        if self._transport is not None and not self._transport.is_closing():
            self._loop.call_later(_LINGER_SECONDS, self._abort)
            self._transport.close()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- idle timeout -------------------------------------------------------------------------

    def _check_idle_after(self, seconds: float) -> None:
        self._idle_timer = self._loop.call_later(seconds, self._close_if_idle)

    def _close_if_idle(self) -> None:
        """Close an idle connection. One timer per connection is cheaper than one per request."""
        left = self._last_activity + self._idle_seconds - self._loop.time()
        if self._task is not None:
            self._check_idle_after(self._idle_seconds)
        elif left > 0:
            self._check_idle_after(left)
        else:
            self._close()
