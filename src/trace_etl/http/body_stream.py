"""The body of a request while it arrives, for handlers that do not keep it in memory."""

import asyncio
from collections import deque
from collections.abc import Callable

MAX_BUFFERED = 1024 * 1024
"""Bytes that are kept for the handler. The connection is not read while there are more."""


class BodyLost(ConnectionError):
    """The client went away, or was too slow, before the body was complete."""


class BodyStream:
    """Chunks of a body, in order. One handler reads them."""

    def __init__(self, on_read: Callable[[], None]) -> None:
        """`on_read` is called before each wait: the connection may then be read again."""
        self._on_read = on_read
        self._chunks: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._is_lost = False
        self.buffered = 0
        self.is_complete = False
        """Whether the last byte arrived."""

    async def read(self) -> bytes:
        """Return the bytes that arrived since the last call; empty at the end. Raises BodyLost."""
        while not self._chunks:
            if self._is_lost:
                raise BodyLost("the body is incomplete")
            if self.is_complete:
                return b""
            self._arrived.clear()
            self._on_read()
            await self._arrived.wait()
        content = b"".join(self._chunks)
        self._chunks.clear()
        self.buffered = 0
        self._on_read()
        return content

    def feed(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self.buffered += len(chunk)
        self._arrived.set()

    def finish(self) -> None:
        self.is_complete = True
        self._arrived.set()

    def lose(self) -> None:
        """End the body early, unless it is complete."""
        if not self.is_complete:
            self._is_lost = True
            self._arrived.set()
