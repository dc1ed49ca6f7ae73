"""The only way out of a sandbox: a Unix socket that serves the calls of one attempt.

The broker reads the head of a request, checks it, and makes a new one with the token and the lease of
this attempt. Nothing that the function sends is passed on as it came: no header, no path, no fence.
Queries, objects and answers pass through in pieces: whatever the function sends or reads, this process
holds a few megabytes for it.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote
from uuid import UUID

import httpx
import structlog

from trace_etl.sandbox.broker.s3_objects import TaskObjectStore
from trace_etl.sandbox.broker.strict_http import (
    MAX_BODY,
    RequestBody,
    RequestRefused,
    StrictAnswer,
    StrictRequest,
    StrictServer,
    listen_at,
)

__all__ = ["MAX_BODY", "AttemptIdentity", "Broker", "PlatformClients", "PublishedRows"]

_log = structlog.stdlib.get_logger()
_TIMEOUT = httpx.Timeout(30.0, read=330.0)  # a task query may take 300 s
_OBJECTS = re.compile(
    r"/v1/task/objects(/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)*(\?[A-Za-z0-9._~%&=/+-]*)?"
)
_QUERY = "/v1/task/query"
_CREDENTIALS = "/v1/task/credentials"
_FENCED = frozenset(
    f"/v1/task/{name}" for name in ("heartbeat", "events", "buffer-publish", "credentials")
)
_PASSED_ON = ("content-type", "range", "if-match", "if-none-match", "accept")
_PASSED_BACK = ("content-type", "content-encoding", "content-range", "etag", "trace-query-id")
MAX_CALL = 1024 * 1024
"""The maximum bytes of a call with a fence, the same as at the Dispatcher."""
_MAX_HELD = 4 * MAX_CALL
_COUNTED = ("dataset_uuid", "record_count", "batch_size_bytes")


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


@dataclass(frozen=True)
class BrokeredAttempt:
    """The attempt that a broker serves now, and what its function has published by dataset."""

    identity: AttemptIdentity
    published: dict[str, PublishedRows] = field(default_factory=dict[str, PublishedRows])
    objects: TaskObjectStore = field(default_factory=TaskObjectStore)

    def count(self, sent: Mapping[str, Any]) -> None:
        """Count a batch that the platform accepted."""
        counted = self.published.setdefault(str(sent.get("dataset_uuid")), PublishedRows())
        counted.rows += int(sent.get("record_count") or 0)
        counted.bytes += int(sent.get("batch_size_bytes") or 0)


class Broker:
    """Serves one attempt at a time on a socket, until it is closed."""

    def __init__(
        self, path: Path, upstream: PlatformClients, identity: AttemptIdentity | None = None
    ) -> None:
        self.path, self._upstream = path, upstream
        self._attempt = BrokeredAttempt(identity) if identity else None
        self._is_on_s3: bool | None = None
        self._adding_fence = threading.Lock()
        self._server = StrictServer(listen_at(path), self._answer, max_held=_MAX_HELD)

    @property
    def published(self) -> dict[str, PublishedRows]:
        """What the function of the current attempt has published."""
        return self._attempt.published if self._attempt else {}

    def serve(self, identity: AttemptIdentity | None) -> None:
        """Serve another attempt from now on; None refuses every call."""
        self._attempt = BrokeredAttempt(identity) if identity else None

    def close(self) -> None:
        """Stop answering. Running requests are not waited for."""
        self._server.close()

    def _answer(self, request: StrictRequest) -> StrictAnswer:
        attempt = self._attempt
        if attempt is None:
            raise RequestRefused(403, "forbidden", "no task of this function runs; stop")
        try:
            reply = self._forward(attempt, request)
        except httpx.HTTPError as error:
            _log.warning("broker_upstream_failed", error=repr(error))
            raise RequestRefused(
                503, "unavailable", "the platform does not answer; try again"
            ) from error
        kept = {name: reply.headers[name] for name in _PASSED_BACK if name in reply.headers}
        length = reply.headers.get("content-length")
        return StrictAnswer(
            reply.status_code,
            _read_pieces(reply),
            kept,
            None if length is None else int(length),
            reply.close,
        )

    def _forward(self, attempt: BrokeredAttempt, request: StrictRequest) -> httpx.Response:
        """Make the request for the attempt. Raises RequestRefused and httpx.HTTPError."""
        method, target = request.method, request.target
        allowed = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        ours = {**allowed, "X-Trace-Task-Capability": attempt.identity.token()}
        if method == "POST" and target == _QUERY:
            return _send(self._upstream.query, method, target, ours, request.body)
        if method == "POST" and target in _FENCED:
            return self._post_fenced(attempt, target, request.body, ours)
        if method in ("GET", "HEAD", "PUT") and _OBJECTS.fullmatch(target):
            _refuse_traversal(target)
            return self._send_object(attempt, request, ours, allowed)
        raise RequestRefused(
            403,
            "forbidden",
            f"a function cannot call {method} {target[:100]}; use the calls of the SDK",
        )

    def _send_object(
        self,
        attempt: BrokeredAttempt,
        request: StrictRequest,
        headers: dict[str, str],
        allowed: dict[str, str],
    ) -> httpx.Response:
        """Use the Dispatcher's object endpoints or, if it has none, S3 with the attempt's credentials."""

        def mint(fields: dict[str, Any]) -> httpx.Response:
            body = {**fields, **attempt.identity.fence()}
            ours = {"X-Trace-Task-Capability": attempt.identity.token()}
            return self._upstream.dispatcher.post(
                _CREDENTIALS, json=body, headers=ours, timeout=_TIMEOUT
            )

        if self._is_on_s3 is None:
            # Asked before a body is sent: it can be read only once.
            self._is_on_s3 = attempt.objects.has_credentials(mint)
        body = request.body if request.method == "PUT" else None
        if self._is_on_s3:
            return attempt.objects.request(mint, request.method, request.target, body, allowed)
        headers["X-Trace-Lease-Token"] = str(attempt.identity.lease_token)
        return _send(self._upstream.dispatcher, request.method, request.target, headers, body)

    def _post_fenced(
        self, attempt: BrokeredAttempt, target: str, body: RequestBody, headers: dict[str, str]
    ) -> httpx.Response:
        content = body.read_whole(MAX_CALL)
        with self._adding_fence:  # the values need more memory than their text: one call at a time
            sent, batch = _add_fence(content, attempt.identity)
        reply = _send(self._upstream.dispatcher, "POST", target, headers, sent)
        if target.endswith("/buffer-publish") and reply.status_code == 200:
            attempt.count(batch)
        return reply


def _send(
    client: httpx.Client,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: RequestBody | bytes | None,
) -> httpx.Response:
    """Send a request and return the answer, whose content is not read yet. Raises httpx.HTTPError."""
    plain = {**headers, "Accept-Encoding": "identity"}
    if isinstance(body, RequestBody):
        plain["Content-Length"] = str(body.length)
    request = client.build_request(method, target, content=body, headers=plain, timeout=_TIMEOUT)
    return client.send(request, stream=True)


def _read_pieces(reply: httpx.Response) -> Iterator[bytes]:
    """Return the content as it was sent. Raises OSError if it is cut, which ends the connection."""
    assert isinstance(reply.stream, httpx.SyncByteStream)
    try:
        yield from reply.stream
    except httpx.HTTPError as error:
        raise OSError(f"the platform cut its answer: {error!r}") from error


def _add_fence(content: bytes, identity: AttemptIdentity) -> tuple[bytes, dict[str, Any]]:
    """Return a call with the fence of this attempt, and its fields that are counted."""
    try:
        fields = json.loads(content)
        if not isinstance(fields, dict):
            raise ValueError("not an object")
        sent = {**cast("dict[str, Any]", fields), **identity.fence()}
        sent.pop("isolation", None)  # of a heartbeat: only the worker knows it
        batch = {name: sent.get(name) for name in _COUNTED}
        return json.dumps(sent, allow_nan=False).encode(), batch
    except (ValueError, RecursionError) as error:
        raise RequestRefused(422, "invalid", "the body is not a JSON object; send one") from error


def _refuse_traversal(target: str) -> None:
    # Not with httpx.URL: it resolves `..` before the check.
    parts = unquote(target.partition("?")[0]).split("/")[1:]
    if {"", ".", ".."} & set(parts):
        raise RequestRefused(403, "forbidden", "the path has an empty part, `.` or `..`; remove it")
