"""Messages between a worker and its operator host: a length and JSON, over one socket."""

import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from trace_etl.worker.batch_thread import BatchThread

_LENGTH = struct.Struct(">I")
_BUFFER_BYTES = 256 * 1024
_MAX_MESSAGES = 256  # in one write
MAX_BYTES = 256 * 1024 * 1024


class Frames:
    """One end of the connection. Any thread may send; one thread receives.

    Messages that wait while others are written are written together.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb", _BUFFER_BYTES)
        self._is_closed = False
        self._outgoing = BatchThread("frames", self._write, _MAX_MESSAGES)

    def send(self, kind: str, **fields: object) -> None:
        """Send a message soon. Raises OSError if the other end is known to have gone."""
        if self._is_closed:
            raise BrokenPipeError("the other end has closed the connection")
        body = orjson.dumps({"kind": kind, **fields}, default=_convert_to_plain)
        self._outgoing.put(_LENGTH.pack(len(body)) + body)

    def receive(self) -> dict[str, Any] | None:
        """Return the next message. None: the other end has gone, and this one is closed."""
        body = self._read_body()
        if body is None:
            self._is_closed = True
            self._file.close()
        return None if body is None else orjson.loads(body)

    def _read_body(self) -> bytes | None:
        with suppress(OSError):
            head = self._file.read(_LENGTH.size)
            [length] = _LENGTH.unpack(head) if len(head) == _LENGTH.size else [MAX_BYTES + 1]
            body = self._file.read(length) if length <= MAX_BYTES else b""
            return body if len(body) == length else None
        return None

    def close(self) -> None:
        """End the connection for both ends. What still waits may not be sent."""
        self._is_closed = True
        with suppress(OSError):  # the other end closed the connection first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._outgoing.close()
        self._socket.close()

    def _write(self, messages: list[bytes]) -> None:
        try:
            self._socket.sendall(b"".join(messages))
        except OSError:
            self._is_closed = True  # `receive` notices the end, too


def _convert_to_plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise TypeError(f"cannot send {type(value).__name__}")
