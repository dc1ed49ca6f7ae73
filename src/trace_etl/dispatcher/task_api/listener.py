"""The internal listener: worker and task-scoped endpoints.

These are the most frequent calls of the platform, so a table of plain functions serves them instead
of a framework's router: one dictionary look-up, one validation, one handler.
"""

import hashlib
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, TypeVar, get_args
from urllib.parse import parse_qs
from uuid import UUID

import orjson
import structlog
from prometheus_client import Counter
from pydantic import BaseModel, ValidationError

from trace_etl import __version__
from trace_etl.api.body import Health, Request
from trace_etl.api.task import events
from trace_etl.api.task import lifecycle as bodies
from trace_etl.api.task.buffers import BufferComplete, BufferFetch
from trace_etl.api.task.credentials import OBJECTS_PATH, CredentialsRequest
from trace_etl.api.task.retired_tables import TablesHeld
from trace_etl.dispatcher import metrics
from trace_etl.dispatcher.task_api import openapi
from trace_etl.dispatcher.task_api.authorization.tokens import TaskTokens
from trace_etl.dispatcher.task_api.authorization.worker_tokens import WorkerTokens
from trace_etl.dispatcher.task_api.buffers import Buffers
from trace_etl.dispatcher.task_api.endpoints import ENDPOINTS, RpcEndpoint
from trace_etl.dispatcher.task_api.lifecycle import Lifecycle
from trace_etl.dispatcher.task_api.retired_tables import RetiredTableCheck
from trace_etl.dispatcher.task_objects.credentials import CredentialMinting
from trace_etl.dispatcher.task_objects.objects import METHODS as OBJECT_METHODS
from trace_etl.dispatcher.task_objects.objects import TaskObjects
from trace_etl.http.problems import MEDIA_TYPE, from_validation, problem
from trace_etl.http.server.small_server import MAX_BODY_BYTES, RpcAnswer, RpcRequest
from trace_etl.http.user_tokens import ServiceKeys
from trace_etl.model.errors import (
    Fault,
    Invalid,
    MethodNotAllowed,
    NotFound,
    TooLarge,
    TraceError,
    Unauthenticated,
    Unavailable,
)
from trace_etl.model.task import TaskStatus
from trace_etl.state.db.pool import CONNECTION_ERRORS

_MAX_FAULTS = 50
_MAX_RENDERED_FAULTS = 1000
_log = structlog.stdlib.get_logger()
Headers = dict[bytes, bytes]
_WORKER_TOKEN = b"x-trace-worker-token"
_CAPABILITY = b"x-trace-task-capability"
_AUTHORIZATION = b"authorization"
_EXTRA_HEADERS = {
    401: ((b"www-authenticate", b'Trace realm="trace"'),),
    503: ((b"retry-after", b"1"),),
}
M = TypeVar("M", bound=Request)


Handler = Callable[[Headers, bytes, bytes], Awaitable[RpcAnswer]]


class InternalApi:
    """Route and handle requests of the internal listener."""

    calls = ENDPOINTS

    def __init__(
        self,
        lifecycle: Lifecycle,
        buffers: Buffers,
        tokens: TaskTokens,
        workers: WorkerTokens,
        services: ServiceKeys,
        retired: RetiredTableCheck,
        minting: CredentialMinting,
        objects: TaskObjects,
    ) -> None:
        self._lifecycle = lifecycle
        self._buffers = buffers
        self._retired = retired
        self._minting = minting
        self._objects = objects
        self._tokens = tokens
        self._workers = workers
        self._services = services
        self._openapi = _add_etag(_make_document(self.calls), b"no-cache")
        handlers: dict[str, Handler] = {
            "health": self._report_health,
            "claim": self._claim,
            "claim_many": self._claim_many,
            "fetch": self._fetch,
            "tables_to_drop": self._list_tables_to_drop,
            "jwks": self._list_keys,
            "heartbeat": self._record_heartbeat,
            "complete": self._complete,
            "complete_many": self._complete_many,
            "events": self._record_events,
            "logs": self._record_logs,
            "buffer_publish": self._publish_batch,
            "credentials": self._issue_credentials,
            "buffer_fetch": self._fetch_batches,
            "buffer_complete": self._complete_batches,
        }
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._routes: dict[str, dict[str, Handler]] = {openapi.PATH: {"GET": self._make_document}}
        for call in self.calls:
            for path in (call.path, *call.aliases):
                self._routes.setdefault(path, {})[call.method] = handlers[call.name]

    # --- handlers ---------------------------------------------------------------------------

    async def _report_health(self, _: Headers, __: bytes, ___: bytes) -> RpcAnswer:
        return _make_json(Health(version=__version__))

    async def _make_document(self, headers: Headers, _: bytes, __: bytes) -> RpcAnswer:
        return _answer_cached(self._openapi, headers)

    async def _claim(self, headers: Headers, body: bytes, _: bytes) -> RpcAnswer:
        self._workers.check(headers)
        return RpcAnswer(await self._lifecycle.claim(_parse(bodies.Claim, body)))

    async def _claim_many(self, headers: Headers, body: bytes, _: bytes) -> RpcAnswer:
        self._workers.check(headers)
        return RpcAnswer(await self._lifecycle.claim_many(_parse(bodies.ClaimMany, body)))

    async def _fetch(self, headers: Headers, _: bytes, query: bytes) -> RpcAnswer:
        self._workers.check(headers)
        return RpcAnswer(await self._lifecycle.fetch(_parse_uuid(query, "task_id")))

    async def _list_tables_to_drop(self, headers: Headers, body: bytes, _: bytes) -> RpcAnswer:
        self._require_sink(headers)
        return _make_json(await self._retired.to_drop(_parse(TablesHeld, body)))

    async def _list_keys(self, headers: Headers, _: bytes, __: bytes) -> RpcAnswer:
        # No token: public keys are no secret, and verifiers such as the Query Service hold no worker token.
        # A short lifetime, so that verifiers get a new key soon. They also ask again on an unknown `kid`.
        keys = _add_etag(orjson.dumps(self._tokens.jwks()), b"private, max-age=300")
        return _answer_cached(keys, headers)

    async def _record_heartbeat(self, headers: Headers, body: bytes, _: bytes) -> RpcAnswer:
        token = _read_capability_token(headers)
        caller = self._tokens.verify(token)
        parsed = _parse(bodies.Heartbeat, body)
        return _make_json(await self._lifecycle.heartbeat(parsed, caller, token))

    async def _complete(self, headers: Headers, body: bytes, _: bytes) -> RpcAnswer:
        caller = self._tokens.verify(_read_capability_token(headers))
        accepted = await self._lifecycle.complete(_parse(bodies.Complete, body), caller)
        return _ACCEPTED[accepted.task_status]

    async def _complete_many(self, headers: Headers, body: bytes, _: bytes) -> RpcAnswer:
        self._workers.check(headers)
        completions = _parse(bodies.CompleteMany, body).completions
        # These fields are those of `CompletedMany`; a test compares the two.
        results = [
            _render_result(result) for result in await self._lifecycle.complete_many(completions)
        ]
        return RpcAnswer(b'{"results":[%b]}' % b",".join(results))

    async def _record_events(self, headers: Headers, body: bytes, _: bytes) -> RpcAnswer:
        caller = self._tokens.verify(_read_capability_token(headers))
        return _make_json(await self._lifecycle.events(_parse(events.Events, body), caller))

    async def _record_logs(self, headers: Headers, body: bytes, _: bytes) -> RpcAnswer:
        caller = self._tokens.verify(_read_capability_token(headers))
        return _make_json(await self._buffers.keep_log(_parse(bodies.LogOutput, body), caller))

    async def _publish_batch(self, headers: Headers, body: bytes, _: bytes) -> RpcAnswer:
        caller = self._tokens.verify(_read_capability_token(headers))
        parsed = _parse(bodies.BufferPublish, body)
        return _make_json(await self._buffers.publish(parsed, caller))

    async def _issue_credentials(self, headers: Headers, body: bytes, _: bytes) -> RpcAnswer:
        caller = self._tokens.verify(_read_capability_token(headers))
        request = _parse(CredentialsRequest, body)
        if request.generations:
            self._workers.check(headers)
        minted = await self._minting.mint(request, caller)
        return _make_json(minted)._replace(headers=((b"cache-control", b"no-store"),))

    async def _fetch_batches(self, headers: Headers, body: bytes, _: bytes) -> RpcAnswer:
        self._require_sink(headers)
        return _make_json(await self._buffers.fetch(_parse(BufferFetch, body)))

    async def _complete_batches(self, headers: Headers, body: bytes, _: bytes) -> RpcAnswer:
        self._require_sink(headers)
        return _make_json(await self._buffers.complete(_parse(BufferComplete, body)))

    def _require_sink(self, headers: Headers) -> None:
        """Check that the sink sends the request. Raises Unauthenticated, Forbidden."""
        scheme, _, token = headers.get(_AUTHORIZATION, b"").decode("latin-1").partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("send the header `Authorization: Bearer TOKEN` of the sink")
        self._services.require(token.strip(), "sink")

    # --- HTTP -------------------------------------------------------------------------------

    async def answer(self, request: RpcRequest) -> RpcAnswer:
        """Handle a request. Exceptions become problem documents."""
        path, query = request.target()
        answer = await self._answer(request, path, query)
        self._count(request.method, path, answer.status)
        return answer

    def _count(self, method: str, path: str, status: int) -> None:
        if path.startswith(OBJECTS_PATH):
            path = OBJECTS_PATH
            method = method if method in OBJECT_METHODS else "other"
        elif method not in self._routes.get(path, {}):
            method = path = "other"
        key = (method, path, status)
        counter = self._counters.get(key)
        if counter is None:  # looking up labels costs more than incrementing
            counter = metrics.REQUESTS.labels("internal", *key)
            self._counters[key] = counter
        counter.inc()

    async def _answer(self, request: RpcRequest, path: str, query: bytes) -> RpcAnswer:
        try:
            if path.startswith(OBJECTS_PATH):
                headers = _parse_headers(request.headers)
                return await self._objects.answer(
                    request.method, path, query, headers, request.stream
                )
            handler = self._route(request.method, path)
            headers = _parse_headers(request.headers)
            if request.has_large_body:
                raise TooLarge(f"the body exceeds {MAX_BODY_BYTES} bytes; send less at once")
            return await handler(headers, request.body, query)
        except TraceError as error:
            return self._answer_refused(error, path)
        except CONNECTION_ERRORS as error:
            _log.warning("state_unavailable", path=path, error=repr(error))
            return _make_problem(Unavailable("Postgres state is unavailable; retry the request"))
        except Exception:
            _log.exception("request_failed", path=path)
            return _make_problem(TraceError())

    def _answer_refused(self, error: TraceError, path: str) -> RpcAnswer:
        answer = _make_problem(error)
        if isinstance(error, MethodNotAllowed):
            allow = (b"allow", ", ".join(self._routes.get(path, OBJECT_METHODS)).encode())
            return answer._replace(headers=(allow,))
        return answer

    def _route(self, method: str, path: str) -> Handler:
        methods = self._routes.get(path)
        if methods is None:
            raise NotFound(f"unknown path {path}; `GET {openapi.PATH}` describes all calls")
        handler = methods.get(method)
        if handler is None:
            raise MethodNotAllowed(f"{path} allows only {', '.join(methods)}")
        return handler


def _make_problem(error: TraceError) -> RpcAnswer:
    status, document = problem(error)
    return RpcAnswer(
        orjson.dumps(document), status, _EXTRA_HEADERS.get(status, ()), MEDIA_TYPE.encode()
    )


@cache
def _make_document(calls: tuple[RpcEndpoint, ...]) -> bytes:
    return orjson.dumps(openapi.document(calls))


def _add_etag(body: bytes, caching: bytes) -> RpcAnswer:
    tag = b'"' + hashlib.sha256(body).hexdigest()[:32].encode() + b'"'
    return RpcAnswer(body, headers=((b"cache-control", caching), (b"etag", tag)))


def _answer_cached(answer: RpcAnswer, headers: Headers) -> RpcAnswer:
    """Return 304 if the caller's ETag matches."""
    tag = dict(answer.headers)[b"etag"]
    known = headers.get(b"if-none-match", b"").replace(b"W/", b"").split(b",")
    if tag in [item.strip() for item in known]:
        return answer._replace(body=b"", status=304)
    return answer


def _parse_headers(pairs: list[tuple[bytes, bytes]]) -> Headers:
    """Return headers by name. Raises Unauthenticated if a credential header is repeated."""
    headers = dict(pairs)
    if len(headers) != len(pairs):
        names = [name for name, _ in pairs]
        for credential in (_WORKER_TOKEN, _CAPABILITY, _AUTHORIZATION):
            if names.count(credential) > 1:
                raise Unauthenticated(
                    f"header {credential.decode()} was sent more than once; send it once"
                )
    return headers


def _make_json(reply: BaseModel) -> RpcAnswer:
    return RpcAnswer(reply.model_dump_json().encode())


# There are few distinct answers, and each is sent thousands of times, so they are rendered once.
_ACCEPTED = {
    status: _make_json(bodies.CompleteAccepted(task_status=status))
    for status in get_args(TaskStatus)
}


def _render_result(result: bodies.CompleteAccepted | bodies.CompleteRefused) -> bytes:
    if isinstance(result, bodies.CompleteAccepted):
        return _ACCEPTED[result.task_status].body
    return result.model_dump_json().encode()


def _parse(model: type[M], body: bytes) -> M:
    try:
        return model.parse_json(body)
    except ValidationError as error:
        raise _explain(error) from error


def _explain(error: ValidationError) -> Invalid:
    """List the first faults. Rendering each of a hundred thousand would block the event loop."""
    if error.error_count() > _MAX_RENDERED_FAULTS:
        return Invalid([Fault("body", f"has {error.error_count()} faults; see /openapi.json")])
    return from_validation(error.errors(include_url=False)[:_MAX_FAULTS])


def _read_capability_token(headers: Headers) -> str:
    return headers.get(_CAPABILITY, b"").decode("latin-1")


def _parse_uuid(query: bytes, name: str) -> UUID:
    values: Any = parse_qs(query.decode("latin-1")).get(name, [])
    try:
        (text,) = values
        return UUID(text)
    except ValueError as error:
        raise Invalid([Fault(name, "must be given exactly once, as a UUID")]) from error
