"""The local invoker: takes asynchronous invocations, as AWS Lambda does, and runs them.

It serves a Unix socket that only processes of this stack can reach. The Dispatcher shows the worker
token. Nothing is retried here: the Dispatcher owns the attempts.
"""

import hmac
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import structlog
from pydantic import ValidationError

from trace_etl.api.task.invocation import Invocation
from trace_etl.dag.runtimes import Runtime
from trace_etl.http.clients.dispatcher_client import DispatcherClient
from trace_etl.sandbox.broker.strict_http import (
    MAX_BODY,
    RequestRefused,
    StrictAnswer,
    StrictRequest,
    StrictServer,
    listen_at,
)
from trace_etl.worker.attempt import Attempt, AttemptServices
from trace_etl.worker.functions.lambda_runner import LambdaRunner
from trace_etl.worker.functions.threaded_runner import ThreadedRunner

_log = structlog.stdlib.get_logger()
_INVOKE = re.compile(r"/2015-03-31/functions/([a-z0-9_]+)/invocations")
_CONNECTIONS = 16


@dataclass
class InvocationServer:
    """Accepts invocations until it is closed. Each has heartbeats and a report."""

    path: Path
    worker_id: str
    token: Callable[[], str]
    client: DispatcherClient
    runner: LambdaRunner
    runtimes: Mapping[str, Runtime]
    stop: threading.Event
    """Set when the worker shuts down: nothing more is accepted."""
    drain_seconds: float
    """How long running invocations may go on after `stop`. Then they are interrupted."""
    _running: set[tuple[UUID, int]] = field(default_factory=set[tuple[UUID, int]])
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _interrupt: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._slots = sum(runtime.slots for runtime in self.runtimes.values())
        self._threaded = ThreadedRunner(self.runner, max(1, self._slots))
        self._services = AttemptServices.open(self.client, self._threaded)
        self.path.unlink(missing_ok=True)
        listener = listen_at(self.path)
        self.path.chmod(0o600)
        self._server = StrictServer(listener, self._answer, max_connections=_CONNECTIONS)
        self._drainer = threading.Thread(target=self._drain, name="drain", daemon=True)
        self._drainer.start()

    def close(self) -> None:
        """Accept nothing more, and wait for the invocations that run, at most `drain_seconds` after `stop`."""
        self.stop.set()
        self._drainer.join()
        self._server.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._running)
        self._services.close()
        self._threaded.close()
        self.runner.environments.close()

    def _drain(self) -> None:
        """Wait for `stop`, then let running invocations end, or interrupt them."""
        self.stop.wait()
        with self._changed:
            self._changed.wait_for(lambda: not self._running, timeout=self.drain_seconds)
            self._interrupt.set()

    def _answer(self, request: StrictRequest) -> StrictAnswer:
        presented = request.headers.get("x-trace-worker-token", "")
        if not hmac.compare_digest(presented.encode(), self.token().encode()):
            raise RequestRefused(
                401, "unauthenticated", "X-Trace-Worker-Token is not valid; send the current one"
            )
        if self.stop.is_set():
            raise RequestRefused(503, "unavailable", "the worker is shutting down")
        if (request.method, request.target) == ("GET", "/worker"):
            return _answer_json(200, {"worker_id": self.worker_id})
        found = _INVOKE.fullmatch(request.target)
        if request.method != "POST" or found is None:
            raise RequestRefused(
                404, "not_found", f"the invoker has no call {request.method} {request.target[:100]}"
            )
        if request.headers.get("x-amz-invocation-type") != "Event":
            raise RequestRefused(400, "invalid", "X-Amz-Invocation-Type is not Event; send it")
        if found[1] not in self.runtimes:
            raise RequestRefused(
                404, "not_found", f"no runtime {found[1]} with the launcher lambda"
            )
        self._start(_parse(request.body.read_whole(MAX_BODY)))
        return StrictAnswer(202)

    def _start(self, invocation: Invocation) -> None:
        """Run the invocation. One that runs already is not started again."""
        attempt = (invocation.task_id, invocation.attempt)
        with self._changed:
            if self._interrupt.is_set():
                raise RequestRefused(503, "unavailable", "the worker is shutting down")
            if attempt in self._running:
                return
            if len(self._running) >= self._slots:
                raise RequestRefused(429, "too_many_requests", "all slots are in use")
            self._running.add(attempt)
        Attempt(
            invocation.claimed(),
            self._services,
            self._interrupt,
            _keep_nothing,
            lambda is_decided: self._end(attempt),
        ).start()

    def _end(self, attempt: tuple[UUID, int]) -> None:
        with self._changed:
            self._running.discard(attempt)
            self._changed.notify_all()


def _parse(body: bytes) -> Invocation:
    try:
        return Invocation.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RequestRefused(422, "invalid", f"{where}: {first['msg']}") from error


def _answer_json(status: int, content: object) -> StrictAnswer:
    headers = {"content-type": "application/json"}
    return StrictAnswer(status, json.dumps(content).encode(), headers)


def _keep_nothing() -> None:
    """Do nothing: an invocation has no message in a queue."""
