"""The internal listener: worker and task-scoped endpoints.

These are the hottest calls of the platform, so a table of plain functions serves them instead of
a framework's router: one dictionary look-up, one validation, one handler.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qs
from uuid import UUID

import orjson
import structlog
from pydantic import BaseModel, ValidationError
from starlette.types import Receive, Scope, Send

from trace_etl import __version__
from trace_etl.dispatcher.lifecycle import Lifecycle
from trace_etl.dispatcher.tokens import TaskTokens
from trace_etl.dispatcher.workers import WorkerTokens
from trace_etl.http.problems import MEDIA_TYPE, from_validation, problem
from trace_etl.model.errors import (
    Fault,
    Invalid,
    MethodNotAllowed,
    NotFound,
    TooLarge,
    TraceError,
    Unavailable,
)
from trace_etl.state.pool import BROKEN
from trace_etl.wire import task as wire

MAX_BODY = 1024 * 1024
_log = structlog.stdlib.get_logger()
Headers = dict[bytes, bytes]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Answer:
    """A reply body, already rendered."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    media_type: bytes = b"application/json"


Handler = Callable[[Headers, bytes, bytes], Awaitable[Answer]]


@dataclass(frozen=True)
class Call:
    """One endpoint of the contract, as code and as documentation."""

    method: str
    path: str
    summary: str
    auth: str
    request: type[BaseModel] | None
    replies: tuple[type[BaseModel], ...]
    statuses: tuple[int, ...]
    handler: Handler
    aliases: tuple[str, ...] = ()


class InternalApi:
    """The ASGI app behind the internal address."""

    def __init__(self, lifecycle: Lifecycle, tokens: TaskTokens, workers: WorkerTokens) -> None:
        self._lifecycle = lifecycle
        self._tokens = tokens
        self._workers = workers
        self.calls = self._table()
        self._routes: dict[str, dict[str, Handler]] = {}
        for call in self.calls:
            for path in (call.path, *call.aliases):
                self._routes.setdefault(path, {})[call.method] = call.handler

    def _table(self) -> list[Call]:
        worker, task = "worker", "task"
        refusals = (401, 413, 422, 503)
        fenced = (401, 403, 404, 409, 413, 422, 503)
        return [
            Call("GET", "/healthz", "Alive, and this version.", "none", None, (), (), self._health),
            Call(
                "POST",
                "/internal/task-claim",
                "Claim a task: one atomic Queued → Running.",
                worker,
                wire.Claim,
                (wire.Claimed, wire.NotClaimed),
                refusals,
                self._claim,
            ),
            Call(
                "POST",
                "/internal/task-claim-many",
                "Extension: claim up to N ready tasks of a runtime in one call.",
                worker,
                wire.ClaimMany,
                (wire.ClaimedMany,),
                refusals,
                self._claim_many,
            ),
            Call(
                "GET",
                "/internal/task-fetch",
                "Read a task; Canceled tells its worker to stop and to report it.",
                worker,
                None,
                (wire.Fetched,),
                (401, 404, 422, 503),
                self._fetch,
            ),
            Call(
                "GET",
                "/internal/jwks/task",
                "The public keys that verify capability tokens.",
                worker,
                None,
                (),
                (401,),
                self._jwks,
            ),
            Call(
                "POST",
                "/v1/task/heartbeat",
                "Extend the lease; 409 tells the worker to stop at once.",
                task,
                wire.Heartbeat,
                (wire.HeartbeatAccepted,),
                fenced,
                self._heartbeat,
                ("/internal/heartbeat",),
            ),
            Call(
                "POST",
                "/v1/task/complete",
                "End the attempt; outputs, events and publications commit with it.",
                task,
                wire.Complete,
                (wire.CompleteAccepted,),
                fenced,
                self._complete,
                ("/internal/task-complete",),
            ),
            Call(
                "POST",
                "/v1/task/events",
                "Record upstream events of a running attempt.",
                task,
                wire.Events,
                (wire.EventsAccepted,),
                fenced,
                self._events,
                ("/internal/events",),
            ),
            Call(
                "POST",
                "/v1/task/buffer-publish",
                "Publish a batch to a buffered dataset.",
                task,
                wire.BufferPublish,
                (wire.BufferPublishAccepted,),
                fenced,
                self._buffer_publish,
            ),
        ]

    # --- handlers ---------------------------------------------------------------------------

    async def _health(self, _: Headers, __: bytes, ___: bytes) -> Answer:
        return Answer(orjson.dumps({"status": "ok", "version": __version__}))

    async def _claim(self, headers: Headers, body: bytes, _: bytes) -> Answer:
        self._workers.check(headers)
        return _json(await self._lifecycle.claim(_parse(wire.Claim, body)))

    async def _claim_many(self, headers: Headers, body: bytes, _: bytes) -> Answer:
        self._workers.check(headers)
        return _json(await self._lifecycle.claim_many(_parse(wire.ClaimMany, body)))

    async def _fetch(self, headers: Headers, _: bytes, query: bytes) -> Answer:
        self._workers.check(headers)
        return _json(await self._lifecycle.fetch(_task_id(query)))

    async def _jwks(self, headers: Headers, _: bytes, __: bytes) -> Answer:
        self._workers.check(headers)
        cache = ((b"cache-control", b"private, max-age=300"),)
        return Answer(orjson.dumps(self._tokens.jwks()), headers=cache)

    async def _heartbeat(self, headers: Headers, body: bytes, _: bytes) -> Answer:
        token = _capability_token(headers)
        caller = self._tokens.verify(token)
        parsed = _parse(wire.Heartbeat, body)
        return _json(await self._lifecycle.heartbeat(parsed, caller, token))

    async def _complete(self, headers: Headers, body: bytes, _: bytes) -> Answer:
        caller = self._tokens.verify(_capability_token(headers))
        return _json(await self._lifecycle.complete(_parse(wire.Complete, body), caller))

    async def _events(self, headers: Headers, body: bytes, _: bytes) -> Answer:
        caller = self._tokens.verify(_capability_token(headers))
        return _json(await self._lifecycle.events(_parse(wire.Events, body), caller))

    async def _buffer_publish(self, headers: Headers, body: bytes, _: bytes) -> Answer:
        caller = self._tokens.verify(_capability_token(headers))
        parsed = _parse(wire.BufferPublish, body)
        return _json(await self._lifecycle.buffer_publish(parsed, caller))

    # --- ASGI -------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = await self._answer(scope, receive)
        headers = [
            (b"content-type", answer.media_type),
            (b"content-length", str(len(answer.body)).encode()),
            *answer.headers,
        ]
        start = {"type": "http.response.start", "status": answer.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        try:
            handler = self._route(scope["method"], scope["path"])
            headers: Headers = dict(scope["headers"])
            return await handler(headers, await _body(headers, receive), scope["query_string"])
        except TraceError as error:
            return _problem(error)
        except BROKEN as error:
            _log.warning("state_unavailable", path=scope["path"], error=repr(error))
            return _problem(Unavailable("Postgres state does not answer; try again"))
        except Exception:
            _log.exception("request_failed", path=scope["path"])
            return _problem(TraceError())

    def _route(self, method: str, path: str) -> Handler:
        methods = self._routes.get(path)
        if methods is None:
            raise NotFound(f"there is no {path} here")
        handler = methods.get(method)
        if handler is None:
            raise MethodNotAllowed(f"{path} answers to {', '.join(methods)}")
        return handler


def _problem(error: TraceError) -> Answer:
    status, document = problem(error)
    extra = ((b"retry-after", b"1"),) if status == 503 else ()
    return Answer(orjson.dumps(document), status, extra, MEDIA_TYPE.encode())


def _json(reply: BaseModel) -> Answer:
    return Answer(reply.model_dump_json().encode())


def _parse(model: type[M], body: bytes) -> M:
    try:
        return model.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise from_validation(error.errors(include_url=False)) from error


def _capability_token(headers: Headers) -> str:
    return headers.get(b"x-trace-task-capability", b"").decode("latin-1")


def _task_id(query: bytes) -> UUID:
    given: Any = parse_qs(query.decode("latin-1")).get("task_id", [])
    try:
        (text,) = given
        return UUID(text)
    except ValueError as error:
        raise Invalid([Fault("task_id", "give one task id, a UUID")]) from error


async def _body(headers: Headers, receive: Receive) -> bytes:
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > MAX_BODY:
        raise TooLarge(f"a body may have {MAX_BODY} bytes at most")
    message = await receive()
    body: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            raise TooLarge(f"a body may have {MAX_BODY} bytes at most")
    return body
