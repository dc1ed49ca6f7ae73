"""Messages between a worker and its operator host: a length and JSON, over one socket."""

import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

_LENGTH = struct.Struct(">I")
MAX_BYTES = 256 * 1024 * 1024


class Frames:
    """One end of the connection. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, kind: str, **fields: object) -> None:
        """Send a message. Raises OSError if the other end has gone."""
        body = orjson.dumps({"kind": kind, **fields}, default=_convert_to_plain)
        with self._sending:
            self._socket.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self) -> dict[str, Any] | None:
        """Return the next message. None: the other end has gone, and this one is closed."""
        body = self._read_body()
        if body is None:
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
        """End the connection for both ends."""
        with suppress(OSError):  # the other end closed the connection first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _convert_to_plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise TypeError(f"cannot send {type(value).__name__}")
