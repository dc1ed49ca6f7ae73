"""HTTP/1.1 for small calls: the whole body first, one task, the whole answer in one write.

A protocol class for uvicorn, which keeps the listener, TLS and the shutdown. What it leaves out
(ASGI, streaming, upgrades, per-request machinery) is more than half of what a request costs.
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


class Answer(NamedTuple):
    """A reply, already rendered."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    media_type: bytes = b"application/json"


class Request:
    """What has arrived of a request."""

    __slots__ = ("body", "headers", "keep_alive", "method", "size", "url")

    def __init__(self) -> None:
        self.url = b""
        self.method = ""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.size = 0
        self.keep_alive = True

    def target(self) -> tuple[str, bytes]:
        """The path and the query."""
        path, _, query = self.url.partition(b"?")
        return path.decode("latin-1"), query


class LeanApp(Protocol):
    """What answers the calls. It must not raise."""

    async def answer(self, request: Request) -> Answer: ...


class _TooMuch(Exception):
    """Raised inside the parser to stop it."""


class LeanProtocol(asyncio.Protocol):
    """One connection. Pipelined requests are answered in order."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = cast("LeanApp", config.loaded_app)  # pyright: ignore[reportUnknownMemberType]
        self._state = server_state
        self._idle_seconds = config.timeout_keep_alive
        self._loop = _loop or asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._request = Request()
        self._waiting: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._idle: asyncio.TimerHandle | None = None
        self._stirred = 0.0
        self._deaf = False
        self._closing = False

    # --- the transport's side ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._state.connections.add(cast("Any", self))
        self._stirred = self._loop.time()
        self._rest(self._idle_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        # A request under way goes on to its end: it may hold somebody's batch.
        self._state.connections.discard(cast("Any", self))
        self._transport = None
        self._waiting.clear()
        if self._idle is not None:
            self._idle.cancel()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._stirred = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._deaf = True
            if not isinstance(error.__context__, _TooMuch):
                self._refuse(HTTPStatus.BAD_REQUEST)
        except httptools.HttpParserUpgrade:
            self._deaf = True
            self._refuse(HTTPStatus.BAD_REQUEST)

    def shutdown(self) -> None:
        """Asked to stop: answer what is under way, then close."""
        self._closing = True
        if self._task is None:
            self._close()

    # --- the parser's side ------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._request = Request()

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
            raise _TooMuch

    def _too_large(self) -> None:
        """Let the app refuse it in its own words; nothing more is read."""
        self._request.keep_alive = False
        self._request.method = self._parser.get_method().decode()
        self._waiting.append(self._request)
        self._start()
        raise _TooMuch

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
            self._stirred = self._loop.time()

    async def _answer(self, request: Request) -> None:
        self._state.total_requests += 1
        answer = await self._app.answer(request)
        if not self._writable.is_set():
            await self._writable.wait()
        self._write(answer, close=self._closing or not request.keep_alive)

    def _write(self, answer: Answer, *, close: bool) -> None:
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
        """Not a request of ours: say so, read no more, close."""
        self._deaf = True
        answer = Answer(status.phrase.encode(), status.value, media_type=b"text/plain")
        self._write(answer, close=True)
        self._close()

    def _close(self) -> None:
        """End our side; wait a moment for the caller, whose answer a hard close could destroy."""
        self._deaf = True
        if self._transport is not None and not self._transport.is_closing():
            self._loop.call_later(_LINGER_SECONDS, self._drop)
            self._transport.close()

    def _drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- idling -----------------------------------------------------------------------------

    def _rest(self, seconds: float) -> None:
        self._idle = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Close if nothing came for long: one timer a connection, not one a request."""
        left = self._stirred + self._idle_seconds - self._loop.time()
        if self._task is not None:
            self._rest(self._idle_seconds)
        elif left > 0:
            self._rest(left)
        else:
            self._close()
