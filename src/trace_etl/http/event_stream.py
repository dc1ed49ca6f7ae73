"""Server-sent events: a response that stays open and sends events as they happen."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import orjson
import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trace_etl.http.client_connection import wait_for_disconnect

ABORT = "trace.abort"
"""ASGI extension that drops a connection without waiting for the client."""
_log = structlog.stdlib.get_logger()
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def render_event(kind: str, data: object, position: str) -> bytes:
    """Render one event. A client that reconnects sends the last `position` back."""
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (
        position.encode(),
        kind.encode(),
        orjson.dumps(data),
    )


def render_comment(text: str) -> bytes:
    """Render a line that clients ignore. Sending it shows whether the connection is still open."""
    return f": {text}\n\n".encode()


class EventStream(Response):
    """Send what `chunks` yields until it ends, the client disconnects, or the client is too slow.

    `on_end` is called after that, even if nothing was sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        *,
        slow_after: float,
        on_end: Callable[[], None],
        status_code: int = 200,
    ) -> None:
        super().__init__(status_code=status_code)
        self._chunks = chunks
        self._slow_after = slow_after
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        abort: Callable[[], None] | None = scope.get("extensions", {}).get(ABORT)
        sending = asyncio.create_task(self._send(send))
        disconnect = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except TimeoutError:
            _log.warning("slow_client_dropped", path=scope["path"])
            if abort is not None:
                abort()
        finally:
            self._on_end()
            await _cancel(sending, disconnect)
            await _close(self._chunks)

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": _HEADERS}
        await send(start)
        async for chunk in self._chunks:
            async with asyncio.timeout(self._slow_after):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _cancel(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError, TimeoutError):
            await task


async def _close(chunks: Any) -> None:
    if hasattr(chunks, "aclose"):
        await chunks.aclose()
