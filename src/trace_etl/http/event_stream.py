"""Server-sent events: an answer that goes on until somebody has enough."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import orjson
import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

ABORT = "trace.abort"
"""The name of the ASGI extension that drops a connection without waiting for its reader."""
_log = structlog.stdlib.get_logger()
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def event(kind: str, data: object, position: str) -> bytes:
    """One event. A client that reconnects sends the last position back."""
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (
        position.encode(),
        kind.encode(),
        orjson.dumps(data),
    )


def comment(text: str) -> bytes:
    """A line that clients ignore: it shows both ends that the connection lives."""
    return f": {text}\n\n".encode()


class EventStream(Response):
    """Sends what `chunks` yields, until it ends, its reader leaves, or is too slow."""

    media_type = "text/event-stream"

    def __init__(
        self, chunks: AsyncIterator[bytes], *, slow_after: float, status_code: int = 200
    ) -> None:
        super().__init__(status_code=status_code)
        self._chunks = chunks
        self._slow_after = slow_after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        abort: Callable[[], None] | None = scope.get("extensions", {}).get(ABORT)
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except TimeoutError:
            _log.warning("slow_client_dropped", path=scope["path"])
            if abort is not None:
                abort()
        finally:
            await _end(sending, leaving)
            await _close(self._chunks)

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": _HEADERS}
        await send(start)
        async for chunk in self._chunks:
            async with asyncio.timeout(self._slow_after):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    """Returns when the reader hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError, TimeoutError):
            await task


async def _close(chunks: Any) -> None:
    if hasattr(chunks, "aclose"):
        await chunks.aclose()
