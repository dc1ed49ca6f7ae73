"""The only way out of a sandbox: a Unix socket that serves the calls of one attempt.

The broker reads a whole request, checks it, and makes a new one with the token and the lease of this
attempt. Nothing that the function sends is passed on as it came: no header, no path, no fence.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote
from uuid import UUID

import httpx
import structlog

from trace_etl.model.errors import UseCredentials
from trace_etl.sandbox.s3_objects import TaskObjectStore
from trace_etl.sandbox.strict_http import (
    MAX_BODY,
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
_PASSED_BACK = ("content-type", "content-range", "etag", "x-trace-query-id")


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
        self._is_on_s3 = False
        self._server = StrictServer(listen_at(path), self._answer)

    @property
    def published(self) -> dict[str, PublishedRows]:
        """What the function of the current attempt has published."""
        return self._attempt.published if self._attempt else {}

    def serve(self, identity: AttemptIdentity | None) -> None:
        """Serve another attempt from now on; None refuses every call."""
        self._attempt = BrokeredAttempt(identity) if identity else None

    def close(self) -> None:
        """Stop to answer. Requests that run are not waited for."""
        self._server.close()

    def _answer(self, request: StrictRequest) -> StrictAnswer:
        attempt = self._attempt
        if attempt is None:
            raise RequestRefused(403, "forbidden", "no task of this function runs")
        try:
            reply = self._forward(attempt, request)
        except httpx.HTTPError as error:
            _log.warning("broker_upstream_failed", error=repr(error))
            raise RequestRefused(503, "unavailable", "the platform does not answer") from error
        kept = {name: reply.headers[name] for name in _PASSED_BACK if name in reply.headers}
        is_head = request.method == "HEAD"
        length = int(reply.headers.get("content-length", 0)) if is_head else None
        return StrictAnswer(reply.status_code, reply.content, kept, length)

    def _forward(self, attempt: BrokeredAttempt, request: StrictRequest) -> httpx.Response:
        """Make the request for the attempt. Raises RequestRefused and httpx.HTTPError."""
        method, target, body = request.method, request.target, request.body
        allowed = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        ours = {**allowed, "X-Trace-Task-Capability": attempt.identity.token()}
        if method == "POST" and target == _QUERY:
            return self._upstream.query.post(target, content=body, headers=ours, timeout=_TIMEOUT)
        if method == "POST" and target in _FENCED:
            return self._post_fenced(attempt, target, body, ours)
        if method in ("GET", "HEAD", "PUT") and _OBJECTS.fullmatch(target):
            _refuse_traversal(target)
            ours["X-Trace-Lease-Token"] = str(attempt.identity.lease_token)
            return self._send_object(attempt, request, ours, allowed)
        raise RequestRefused(403, "forbidden", f"a function cannot call {method} {target[:100]}")

    def _send_object(
        self,
        attempt: BrokeredAttempt,
        request: StrictRequest,
        headers: dict[str, str],
        allowed: dict[str, str],
    ) -> httpx.Response:
        """Use the Dispatcher's object endpoints or, if it has none, S3 with the attempt's credentials."""
        method, target, body = request.method, request.target, request.body

        def send(method: str) -> httpx.Response:
            content = body if method == "PUT" else None
            return self._upstream.dispatcher.request(
                method, target, content=content, headers=headers, timeout=_TIMEOUT
            )

        if not self._is_on_s3:
            reply = send(method)
            if reply.status_code != 404:
                return reply
            problem = reply if method != "HEAD" else send("GET")  # the answer to HEAD has no body
            self._is_on_s3 = problem.json().get("code") == UseCredentials.code
            if not self._is_on_s3:
                return reply
        objects = attempt.objects

        def mint(fields: dict[str, Any]) -> httpx.Response:
            body = {**fields, **attempt.identity.fence()}
            ours = {"X-Trace-Task-Capability": attempt.identity.token()}
            return self._upstream.dispatcher.post(
                _CREDENTIALS, json=body, headers=ours, timeout=_TIMEOUT
            )

        return objects.request(mint, method, target, body, allowed)

    def _post_fenced(
        self, attempt: BrokeredAttempt, target: str, body: bytes, headers: dict[str, str]
    ) -> httpx.Response:
        try:
            fields = json.loads(body)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise RequestRefused(422, "invalid", "the body must be a JSON object")
        sent = {**cast("dict[str, Any]", fields), **attempt.identity.fence()}
        reply = self._upstream.dispatcher.post(target, json=sent, headers=headers, timeout=_TIMEOUT)
        if target.endswith("/buffer-publish") and reply.status_code == 200:
            attempt.count(sent)
        return reply


def _refuse_traversal(target: str) -> None:
    # Not with httpx.URL: it resolves `..` before the check.
    parts = unquote(target.partition("?")[0]).split("/")[1:]
    if {"", ".", ".."} & set(parts):
        raise RequestRefused(403, "forbidden", "the path has an empty part, `.` or `..`")
