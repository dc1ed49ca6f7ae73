"""A strict HTTP/1.1 server for the other end of a sandbox: one thread per connection, bounded memory.

It refuses every request that two programs could read in two ways, and passes nothing on as it came.
Bodies and answers are streams. A body that is needed whole counts against the budget of its server.
"""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
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


class Budget:
    """The bytes of whole bodies that a server may hold at once."""

    def __init__(self, size: int) -> None:
        self._free, self._lock = size, threading.Lock()

    def take(self, size: int) -> None:
        """Reserve bytes. Raises RequestRefused."""
        with self._lock:
            if size > self._free:
                rule = "the running requests of this function are too large together; wait for their end"
                raise RequestRefused(429, "too_many_requests", rule)
            self._free -= size

    def give_back(self, size: int) -> None:
        with self._lock:
            self._free += size


class RequestBody:
    """The body of a request. Read it once, in pieces or whole; what is left is dropped."""

    def __init__(self, length: int, pieces: Iterator[bytes], budget: Budget) -> None:
        self.length, self._pieces, self._budget, self._held = length, pieces, budget, 0

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def read_whole(self, most: int) -> bytes:
        """Return the whole body, which may have this many bytes. Raises RequestRefused."""
        if self.length > most:
            raise RequestRefused(
                413, "too_large", f"the body is larger than {most} bytes; send less"
            )
        self._budget.take(self.length)
        self._held += self.length
        return b"".join(self._pieces)

    def drop(self) -> None:
        """Read the rest: a client that still sends would miss the answer."""
        for _ in self._pieces:
            pass

    def close(self) -> None:
        """Drop the rest, and return the reserved bytes."""
        try:
            self.drop()
        finally:
            self._budget.give_back(self._held)
            self._held = 0


@dataclass(frozen=True)
class StrictRequest:
    """A request whose head is complete."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: RequestBody


def _do_nothing() -> None:
    pass


@dataclass(frozen=True)
class StrictAnswer:
    """An answer: its content, whole or in pieces. Pieces without a `length` are sent as chunks."""

    status: int
    content: bytes | Iterable[bytes] = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    length: int | None = None
    """The length of pieces, or for HEAD that of the content which is not sent."""
    close: Callable[[], None] = _do_nothing
    """Called when the answer was sent, or could not be."""


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
        max_held: int = MAX_BODY,
    ) -> None:
        """`answer` may raise RequestRefused. `max_held` limits the bodies that it holds at once."""
        self._listener, self._answer, self._max_body = listener, answer, max_body
        self._budget = Budget(max_held)
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
                _Connection(client, self._answer, self._max_body, self._budget).serve()
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
        budget: Budget,
    ) -> None:
        self._client, self._answer, self._max_body = client, answer, max_body
        self._budget = budget
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)

    def serve(self) -> None:
        while True:
            try:
                request = self._read_head()
                if request is None:
                    return
                self._serve_request(request)
            except h11.RemoteProtocolError as error:
                self._send_problem(RequestRefused(400, "invalid", str(error)))
                return
            except RequestRefused as refusal:
                self._send_problem(refusal)
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    def _read_head(self) -> StrictRequest | None:
        """Return the next request. None: the client has closed the connection."""
        head = bytearray(self._http.trailing_data[0])
        while (event := self._http.next_event()) is h11.NEED_DATA:
            part = self._client.recv(_READ_BYTES)
            head += part
            self._http.receive_data(part)
        if not isinstance(event, h11.Request):
            return None
        left = len(self._http.trailing_data[0])
        _check_lines(bytes(head[: len(head) - left]))
        _check_framing(event)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        length = int(headers.get("content-length", "0"))
        if length > self._max_body:
            raise RequestRefused(
                413, "too_large", f"the body is larger than {self._max_body} bytes; send less"
            )
        body = RequestBody(length, self._read_body(), self._budget)
        return StrictRequest(
            event.method.decode("latin-1"), event.target.decode("latin-1"), headers, body
        )

    def _read_body(self) -> Iterator[bytes]:
        while isinstance(event := self._next_event(), h11.Data):
            yield bytes(event.data)

    def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(self._client.recv(_READ_BYTES))
        return event

    def _serve_request(self, request: StrictRequest) -> None:
        with closing(request.body), closing(self._answer(request)) as answer:
            request.body.drop()
            self._send(answer)

    def _send_problem(self, refusal: RequestRefused) -> None:
        problem = {"code": refusal.code, "detail": refusal.detail, "status": refusal.status}
        headers = {"content-type": "application/problem+json", "connection": "close"}
        self._send(StrictAnswer(refusal.status, json.dumps(problem).encode(), headers))

    def _send(self, answer: StrictAnswer) -> None:
        pieces = [answer.content] if isinstance(answer.content, bytes) else answer.content
        length = answer.length
        if length is None and isinstance(answer.content, bytes):
            length = len(answer.content)
        headers = [*answer.headers.items()]
        headers += [("content-length", str(length))] if length is not None else []
        data = self._http.send(h11.Response(status_code=answer.status, headers=headers)) or b""
        for piece in pieces:  # the first piece is sent in one packet with the head
            self._client.sendall(data + (self._http.send(h11.Data(data=piece)) or b""))
            data = b""
        self._client.sendall(data + (self._http.send(h11.EndOfMessage()) or b""))


def _check_lines(head: bytes) -> None:
    """Refuse lines that end with LF alone, which other servers may read differently. Raises RequestRefused."""
    if head.count(b"\n") != head.count(b"\r\n"):
        raise RequestRefused(400, "invalid", "end each line of the head with CR and LF")


def _check_framing(request: h11.Request) -> None:
    """Refuse what could be read in two ways. Raises RequestRefused."""
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names or names.count(b"content-length") > 1:
        raise RequestRefused(400, "invalid", "send one Content-Length and no Transfer-Encoding")
    if not request.target.startswith(b"/") or request.target.startswith(b"//"):
        raise RequestRefused(400, "invalid", "the request target is not a path; send one")
