"""Frames between the Query Service and its query processes: a kind, a length, the content."""

import re
import socket
import struct
from dataclasses import asdict
from typing import Any

import orjson

from trace_etl.model.errors import Fault, Invalid, TraceError, Unavailable
from trace_etl.query.errors import NoDataYet, QueryCrashed, QueryTimedOut, QueryTooLarge

_SIGNATURE = re.compile(rb"[?&]?X-Amz-[A-Za-z-]+=[^\s&'\"\\]*")
HEADER = struct.Struct("!cI")
MAX_ROWS_FRAME = 512 * 1024
READY, REQUEST, ROWS, FILE, DONE, FAILED = b"+", b"?", b"r", b"p", b"d", b"f"
_ERRORS: dict[str, type[TraceError]] = {
    error.code: error
    for error in (Invalid, Unavailable, NoDataYet, QueryTooLarge, QueryTimedOut, QueryCrashed)
}


def send(channel: socket.socket, kind: bytes, content: bytes | memoryview) -> None:
    """Send one frame from a query process."""
    header = HEADER.pack(kind, len(content))
    sent = channel.sendmsg([header, content])
    if sent < len(header):
        channel.sendall(header[sent:])
        sent = len(header)
    channel.sendall(memoryview(content)[sent - len(header) :])


def receive(channel: socket.socket) -> tuple[bytes, bytes] | None:
    """Receive one frame in a query process; None after the service closed the channel."""
    header = channel.recv(HEADER.size, socket.MSG_WAITALL)
    if len(header) < HEADER.size:
        return None
    kind, length = HEADER.unpack(header)
    return kind, channel.recv(length, socket.MSG_WAITALL) if length else b""


def encode_error(error: BaseException) -> bytes:
    """Encode an error as a value that the service turns into an exception again."""
    cause = error.__cause__ if isinstance(error, TraceError) else error
    value: dict[str, Any] = {"code": getattr(error, "code", "internal"), "cause": repr(cause)}
    if isinstance(error, Invalid):
        value["faults"] = [asdict(fault) for fault in error.faults]
    elif isinstance(error, TraceError):
        value["detail"] = error.detail
    return _SIGNATURE.sub(
        b"", orjson.dumps(value)
    )  # messages of DuckDB name the URLs that it reads


def decode_error(content: bytes) -> tuple[TraceError, str]:
    """Return the error that a process reported, and the text of its cause for the log."""
    value = orjson.loads(content)
    kind = _ERRORS.get(value["code"], TraceError)
    if issubclass(kind, Invalid):
        return kind([Fault(**fault) for fault in value["faults"]]), value["cause"]
    return kind(value.get("detail", "internal error")), value["cause"]
