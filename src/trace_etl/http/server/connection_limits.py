"""Limits of one connection: how much a client may send, and how long it may take."""

import asyncio
from http import HTTPStatus
from typing import Protocol

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

_LINGER_SECONDS = 2.0
"""Time for a client to read an error and close its side."""
_WRITE_BUFFER = 64 * 1024
_MIN_DRAIN = 64 * 1024
"""Bytes of an answer that a client must read per `send_seconds`."""
_MAX_DISCARDED = 1024 * 1024
"""Bytes of a body that are read after its request was refused, so that the connection can be reused."""
_CLOSE = b"connection: close\r\n\r\n"


class ConnectionLimits(BaseModel):
    """Limits of a listener (`TRACE_HTTP_LIMITS`, a JSON object)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_connections: PositiveInt = 4096
    """Connections per listener. Lowered to the process's limit of open files."""
    max_connections_per_address: PositiveInt = 1024
    """Connections per IPv4 address or IPv6 /64 network."""
    max_head_bytes: PositiveInt = 32 * 1024
    """Request line and headers."""
    handshake_seconds: PositiveFloat = 10.0
    request_seconds: PositiveFloat = 30.0
    """From the first byte of a request to its last."""
    idle_seconds: PositiveFloat = 75.0
    """Between two requests. Longer than a heartbeat interval, so that workers reuse connections."""
    send_seconds: PositiveFloat = 30.0
    """A client that reads less than 64 KiB of its answer in this time is disconnected."""

    @property
    def shortest(self) -> float:
        return min(self.request_seconds, self.idle_seconds, self.send_seconds)


class LimitExceeded(Exception):
    """Raised in a parser callback to stop the parser. The connection has sent its refusal."""


class LimitedConnection(Protocol):
    """A connection that an Acceptor watches. `meter` is None until the TLS handshake is done."""

    meter: "RequestMeter | None"

    def refuse(self, status: HTTPStatus) -> None:
        """Send an error, if no answer has begun, and close."""
        ...

    def shutdown(self) -> None:
        """Finish the running requests, then close."""
        ...


class RequestMeter:
    """Measures the requests of one connection. The connection's parser callbacks drive it."""

    __slots__ = (
        "_answered",
        "_begun",
        "_closed_at",
        "_discarded_bytes",
        "_drain_size",
        "_drain_start",
        "_head_bytes",
        "_is_receiving",
        "_limits",
        "_loop",
        "_silent_bytes",
        "_streamed_bytes",
        "since",
        "transport",
    )

    def __init__(self, limits: ConnectionLimits, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self.transport = transport
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._begun = self._answered = 0
        self._is_receiving = False
        self._head_bytes = self._silent_bytes = self._discarded_bytes = 0
        self._streamed_bytes = 0
        self._closed_at: float | None = None
        self._drain_size = 0
        self.since = self._drain_start = self._loop.time()
        """The time when the connection became idle, or when its request began."""

    # --- what the parser reports --------------------------------------------------------------

    def begin(self) -> None:
        """Note that a request begins."""
        if self._begun == self._answered:
            self.since = self._loop.time()
        self._begun += 1
        self._is_receiving = True
        self._head_bytes = self._silent_bytes = self._discarded_bytes = 0

    def add_head(self, size: int) -> bool:
        """Count a part of the head. Returns False if the head is too large."""
        self._silent_bytes = 0
        self._head_bytes += size
        return self._head_bytes <= self._limits.max_head_bytes

    def add_body(self, size: int) -> bool:
        """Count a part of the body. Returns False if the request was refused and its client still sends.

        The app limits the size of a body until it answers.
        """
        self._silent_bytes = 0
        if self.waiting:
            return True
        self._discarded_bytes += size
        return self._discarded_bytes <= _MAX_DISCARDED

    def note_progress(self, size: int) -> None:
        """Count a part of a streamed body. Each 64 KiB give the client `request_seconds` again."""
        self._streamed_bytes += size
        if self._streamed_bytes >= _MIN_DRAIN:
            self._streamed_bytes = 0
            self.since = self._loop.time()

    def end(self) -> None:
        """Note that the request is complete."""
        self._is_receiving = False
        self._silent_bytes = 0

    def receive(self, size: int) -> None:
        """Count bytes before they are parsed. Each report of the parser sets the count to zero."""
        self._silent_bytes += size

    @property
    def has_endless_field(self) -> bool:
        """Whether the parser stores a header, a trailer or a chunk extension that is too large."""
        return self._silent_bytes > self._limits.max_head_bytes

    def answer(self) -> None:
        """Note that an answer is complete."""
        self._answered += 1
        self.since = self._loop.time()

    # --- what the acceptor asks ---------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests that began and are not answered."""
        return self._begun - self._answered

    @property
    def is_receiving(self) -> bool:
        """Whether a part of a request has arrived and its end has not."""
        return self._is_receiving

    @property
    def is_answering(self) -> bool:
        """Whether a complete request waits for its answer."""
        return self.waiting > (1 if self._is_receiving else 0)

    @property
    def has_served(self) -> bool:
        return self._answered > 0

    def has_expired(self, now: float) -> bool:
        """Whether the client used up the time for a request or between requests."""
        if self.is_answering or self._closed_at is not None:
            return False
        limits = self._limits
        allowed = limits.request_seconds if self._is_receiving else limits.idle_seconds
        return now - self.since > allowed

    @property
    def is_idle(self) -> bool:
        return self.waiting == 0

    def must_abort(self, now: float) -> bool:
        """Whether the client reads its answer too slowly, or does not close its side."""
        if self._closed_at is not None and now - self._closed_at > _LINGER_SECONDS:
            return True
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0:
            self._drain_start, self._drain_size = now, 0
            return False
        if now - self._drain_start <= self._limits.send_seconds:
            self._drain_size = max(self._drain_size, unsent)
            return False
        drained = self._drain_size - unsent
        self._drain_start, self._drain_size = now, unsent
        return drained < _MIN_DRAIN

    def note_drained(self) -> None:
        """Note that the client has read most of the answer."""
        self._drain_start, self._drain_size = self._loop.time(), 0

    def close(self) -> None:
        """Close after the written data was sent.

        While the client sends, only stop writing, and abort later: closing a socket with unread data
        resets it, and the client would not see the answer.
        """
        if self._closed_at is None and not self.transport.is_closing():
            self._closed_at = self._loop.time()
            if self.transport.can_write_eof():
                self.transport.write_eof()
            elif not self._is_receiving:
                self.transport.close()

    @property
    def is_closed(self) -> bool:
        return self._closed_at is not None


def render_refusal(status: HTTPStatus) -> bytes:
    """Render the answer to a request that cannot be read."""
    text = status.phrase.encode()
    head = b"HTTP/1.1 %d %b\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n"
    return head % (status.value, text, len(text)) + _CLOSE + text
