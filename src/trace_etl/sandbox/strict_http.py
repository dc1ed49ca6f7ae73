"""A strict HTTP/1.1 server for the other end of a sandbox: one thread per connection, whole bodies.

It refuses every request that two programs could read in two ways, and passes nothing on as it came.
"""

import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import h11
import structlog

_log = structlog.stdlib.get_logger()
MAX_BODY = 64 * 1024 * 1024
_MAX_HEAD = 16 * 1024
_MAX_CONNECTIONS = 8
_IDLE_SECONDS = 60.0
_READ_BYTES = 1 << 16


class RequestRefused(Exception):
    """A request that is not answered. The client gets a problem document."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail


@dataclass(frozen=True)
class StrictRequest:
    """A whole request."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class StrictAnswer:
    """A whole answer. `length` differs from that of the content for HEAD only."""

    status: int
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    length: int | None = None


def listen_at(path: Path) -> socket.socket:
    """Listen on a Unix socket that every user can reach who can enter its directory."""
    server = socket.socket(socket.AF_UNIX)
    # By the descriptor of its directory: the path of a socket may have only 107 bytes.
    directory = os.open(path.parent, os.O_PATH)
    try:
        server.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
    path.chmod(0o666)  # the directory above is private; the sandbox has another user id
    server.listen(_MAX_CONNECTIONS)
    return server


class StrictServer:
    """Serves a listening socket until it is closed."""

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[StrictRequest], StrictAnswer],
        *,
        max_body: int = MAX_BODY,
        max_connections: int = _MAX_CONNECTIONS,
    ) -> None:
        """`answer` may raise RequestRefused."""
        self._listener, self._answer, self._max_body = listener, answer, max_body
        self._closing = threading.Event()
        self._free = threading.Semaphore(max_connections)
        self._thread = threading.Thread(target=self._accept, name="strict-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering. Running requests are not waited for."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while not self._closing.is_set():
            self._free.acquire()
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                client.settimeout(_IDLE_SECONDS)
                _Connection(client, self._answer, self._max_body).serve()
        except (OSError, h11.ProtocolError) as error:
            _log.debug("sandbox_connection_ended", error=repr(error))
        finally:
            self._free.release()


class _Connection:
    """One connection: reads requests strictly, one after the other."""

    def __init__(
        self,
        client: socket.socket,
        answer: Callable[[StrictRequest], StrictAnswer],
        max_body: int,
    ) -> None:
        self._client, self._answer, self._max_body = client, answer, max_body
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)

    def serve(self) -> None:
        while True:
            try:
                request = self._read_request()
                if request is None:
                    return
            except h11.RemoteProtocolError as error:
                self._send_problem(RequestRefused(400, "invalid", str(error)))
                return
            except RequestRefused as refusal:
                self._send_problem(refusal)
                return
            try:
                self._send(self._answer(request))
            except RequestRefused as refusal:
                self._send_problem(refusal)
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    def _read_request(self) -> StrictRequest | None:
        request: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(self._client.recv(_READ_BYTES))
            elif isinstance(event, h11.Request):
                request = event
                _check_framing(event)
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > self._max_body:
                    rule = f"a body may have {self._max_body} bytes"
                    raise RequestRefused(413, "too_large", rule)
            else:  # the end of the message or of the connection
                return _make_request(request, bytes(body)) if request else None

    def _send_problem(self, refusal: RequestRefused) -> None:
        problem = {"code": refusal.code, "detail": refusal.detail, "status": refusal.status}
        headers = {"content-type": "application/problem+json", "connection": "close"}
        self._send(StrictAnswer(refusal.status, json.dumps(problem).encode(), headers))

    def _send(self, answer: StrictAnswer) -> None:
        length = len(answer.content) if answer.length is None else answer.length
        headers = [*answer.headers.items(), ("content-length", str(length))]
        data = self._http.send(h11.Response(status_code=answer.status, headers=headers)) or b""
        data += self._http.send(h11.Data(data=answer.content)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        self._client.sendall(data)


def _make_request(request: h11.Request, body: bytes) -> StrictRequest:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
    return StrictRequest(
        request.method.decode("latin-1"), request.target.decode("latin-1"), headers, body
    )


def _check_framing(request: h11.Request) -> None:
    """Refuse what could be read in two ways. Raises RequestRefused."""
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names or names.count(b"content-length") > 1:
        raise RequestRefused(400, "invalid", "send one Content-Length and no Transfer-Encoding")
    if not request.target.startswith(b"/") or request.target.startswith(b"//"):
        raise RequestRefused(400, "invalid", "the request target must be a path")
