"""The service's end of the socket to a query process. Frames are read without copying them twice."""

import asyncio
from typing import cast

from trace_etl.query.processes.frames import HEADER, MAX_ROWS_FRAME

# A full frame of rows fills the buffer exactly, so no byte of the next frame has to be moved.
_BUFFER = HEADER.size + MAX_ROWS_FRAME


class ProcessChannel(asyncio.BufferedProtocol):
    """Reads and writes frames. The process waits while the service does not read."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_BUFFER))
        self._filled = 0
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._has_ended = False

    # --- callbacks of the transport -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled == len(self._buffer) and self._transport is not None:
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- frames -------------------------------------------------------------------------------

    async def read(self, max_bytes: int) -> tuple[bytes, bytes]:
        """Receive one frame. Raises IncompleteReadError at the end of the stream."""
        await self._fill(HEADER.size)
        kind, length = HEADER.unpack_from(self._buffer)
        if length > max_bytes:
            raise asyncio.IncompleteReadError(b"", length)  # only a broken process sends that much
        end = HEADER.size + length
        await self._fill(end)
        content = bytes(self._buffer[HEADER.size : end])
        self._discard(end)
        return kind, content

    def write(self, kind: bytes, content: bytes) -> None:
        """Send one frame. Raises ConnectionResetError after the process has ended."""
        if self._transport is None or self._has_ended:
            raise ConnectionResetError("the query process has ended")
        self._transport.write(HEADER.pack(kind, len(content)) + content)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def _fill(self, size: int) -> None:
        """Wait until the buffer holds this many bytes."""
        if size > len(self._buffer):
            larger = memoryview(bytearray(size))
            larger[: self._filled] = self._buffer[: self._filled]
            self._buffer = larger
            self._resume()
        while self._filled < size:
            if self._has_ended:
                raise asyncio.IncompleteReadError(bytes(self._buffer[: self._filled]), size)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _discard(self, size: int) -> None:
        rest = bytes(self._buffer[size : self._filled])
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)
        self._resume()

    def _resume(self) -> None:
        if self._transport is not None and not self._has_ended:
            self._transport.resume_reading()
