"""The only way out of a sandbox: a Unix socket that serves the calls of one attempt.

The broker reads a whole request, checks it, and makes a new one with the token and the lease of this
attempt. Nothing that the function sends is passed on as it came: no header, no path, no fence.
"""

import json
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote
from uuid import UUID

import h11
import httpx
import structlog

_log = structlog.stdlib.get_logger()
MAX_BODY = 64 * 1024 * 1024
_MAX_HEAD = 16 * 1024
_MAX_CONNECTIONS = 8
_TIMEOUT = httpx.Timeout(30.0, read=330.0)  # a task query may take 300 s
_IDLE_SECONDS = 60.0
_READ_BYTES = 1 << 16
_OBJECTS = re.compile(
    r"/v1/task/objects(/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)*(\?[A-Za-z0-9._~%&=/+-]*)?"
)
_QUERY = "/v1/task/query"
_FENCED = frozenset(
    f"/v1/task/{name}" for name in ("heartbeat", "events", "buffer-publish", "credentials")
)
_PASSED_ON = ("content-type", "range", "if-match", "if-none-match", "accept")
_PASSED_BACK = ("content-type", "content-range", "etag", "x-trace-query-id")


class RequestRefused(Exception):
    """A request that the broker does not make."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail


@dataclass(frozen=True)
class PlatformClients:
    """The services that a task may call."""

    dispatcher: httpx.Client
    query: httpx.Client


@dataclass(frozen=True)
class AttemptIdentity:
    """The attempt that a broker speaks for."""

    task_id: UUID
    attempt: int
    lease_token: UUID
    token: Callable[[], str]
    """The current capability token: heartbeats replace it."""

    def fence(self) -> dict[str, Any]:
        return {
            "task_id": str(self.task_id),
            "attempt": self.attempt,
            "lease_token": str(self.lease_token),
        }


@dataclass
class PublishedRows:
    """The batches that a function has published to one dataset."""

    rows: int = 0
    bytes: int = 0


@dataclass
class Broker:
    """Serves one attempt on a socket, until it is closed."""

    path: Path
    upstream: PlatformClients
    identity: AttemptIdentity
    published: dict[str, PublishedRows] = field(default_factory=dict[str, PublishedRows])
    _closing: threading.Event = field(default_factory=threading.Event)
    _free: threading.Semaphore = field(
        default_factory=lambda: threading.Semaphore(_MAX_CONNECTIONS)
    )

    def __post_init__(self) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        # By the descriptor of its directory: the path of a socket may have only 107 bytes.
        directory = os.open(self.path.parent, os.O_PATH)
        try:
            self._server.bind(f"/proc/self/fd/{directory}/{self.path.name}")
        finally:
            os.close(directory)
        self.path.chmod(0o666)  # the directory above is private; the sandbox has another user id
        self._server.listen(_MAX_CONNECTIONS)
        self._thread = threading.Thread(target=self._accept, name="broker", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop to answer. Requests that run are not waited for."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()

    def _accept(self) -> None:
        while not self._closing.is_set():
            self._free.acquire()
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                client.settimeout(_IDLE_SECONDS)
                _Connection(client, self).serve()
        except (OSError, h11.ProtocolError) as error:
            _log.debug("broker_connection_ended", error=repr(error))
        finally:
            self._free.release()

    # --- requests -----------------------------------------------------------------------------

    def answer(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> httpx.Response:
        """Make the request for this attempt. Raises RequestRefused and httpx.HTTPError."""
        allowed = {name: headers[name] for name in _PASSED_ON if name in headers}
        ours = {**allowed, "X-Trace-Task-Capability": self.identity.token()}
        if method == "POST" and target == _QUERY:
            return self.upstream.query.post(target, content=body, headers=ours, timeout=_TIMEOUT)
        if method == "POST" and target in _FENCED:
            return self._post_fenced(target, body, ours)
        if method in ("GET", "HEAD", "PUT") and _OBJECTS.fullmatch(target):
            _refuse_traversal(target)
            ours["X-Trace-Lease-Token"] = str(self.identity.lease_token)
            content = body if method == "PUT" else None
            return self.upstream.dispatcher.request(
                method, target, content=content, headers=ours, timeout=_TIMEOUT
            )
        raise RequestRefused(403, "forbidden", f"a function cannot call {method} {target[:100]}")

    def _post_fenced(self, target: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
        try:
            fields = json.loads(body)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise RequestRefused(422, "invalid", "the body must be a JSON object")
        sent = {**cast("dict[str, Any]", fields), **self.identity.fence()}
        reply = self.upstream.dispatcher.post(target, json=sent, headers=headers, timeout=_TIMEOUT)
        if target.endswith("/buffer-publish") and reply.status_code == 200:
            self._count(sent)
        return reply

    def _count(self, sent: Mapping[str, Any]) -> None:
        counted = self.published.setdefault(str(sent.get("dataset_uuid")), PublishedRows())
        counted.rows += int(sent.get("record_count") or 0)
        counted.bytes += int(sent.get("batch_size_bytes") or 0)


def _refuse_traversal(target: str) -> None:
    # Not with httpx.URL: it resolves `..` before anyone can see it.
    parts = unquote(target.partition("?")[0]).split("/")[1:]
    if {"", ".", ".."} & set(parts):
        raise RequestRefused(403, "forbidden", "the path has an empty part, `.` or `..`")


class _Connection:
    """One connection of the function: reads requests strictly, one after the other."""

    def __init__(self, client: socket.socket, broker: Broker) -> None:
        self._client, self._broker = client, broker
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)

    def serve(self) -> None:
        while True:
            try:
                request, body = self._read_request()
            except h11.RemoteProtocolError as error:
                self._send_problem(RequestRefused(400, "invalid", str(error)))
                return
            except RequestRefused as refusal:
                self._send_problem(refusal)
                return
            if request is None:
                return
            self._answer(request, body)
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    def _read_request(self) -> tuple[h11.Request | None, bytes]:
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
                if len(body) > MAX_BODY:
                    raise RequestRefused(413, "too_large", f"a body may have {MAX_BODY} bytes")
            else:  # the end of the message or of the connection
                return request, bytes(body)

    def _answer(self, request: h11.Request, body: bytes) -> None:
        method, target = request.method.decode("latin-1"), request.target.decode("latin-1")
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers
        }
        try:
            reply = self._broker.answer(method, target, headers, body)
        except RequestRefused as refusal:
            self._send_problem(refusal)
            return
        except httpx.HTTPError as error:
            _log.warning("broker_upstream_failed", error=repr(error))
            self._send_problem(RequestRefused(503, "unavailable", "the platform does not answer"))
            return
        kept = [(name, reply.headers[name]) for name in _PASSED_BACK if name in reply.headers]
        length = (
            reply.headers.get("content-length", "0")
            if method == "HEAD"
            else str(len(reply.content))
        )
        self._send(reply.status_code, [*kept, ("content-length", length)], reply.content)

    def _send_problem(self, refusal: RequestRefused) -> None:
        problem = {"code": refusal.code, "detail": refusal.detail, "status": refusal.status}
        content = json.dumps(problem).encode()
        headers = [
            ("content-type", "application/problem+json"),
            ("content-length", str(len(content))),
        ]
        self._send(refusal.status, [*headers, ("connection", "close")], content)

    def _send(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        data = self._http.send(h11.Response(status_code=status, headers=headers)) or b""
        data += self._http.send(h11.Data(data=content)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        self._client.sendall(data)


def _check_framing(request: h11.Request) -> None:
    """Refuse what could be read in two ways. Raises RequestRefused."""
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names or names.count(b"content-length") > 1:
        raise RequestRefused(400, "invalid", "send one Content-Length and no Transfer-Encoding")
    if not request.target.startswith(b"/") or request.target.startswith(b"//"):
        raise RequestRefused(400, "invalid", "the request target must be a path")
