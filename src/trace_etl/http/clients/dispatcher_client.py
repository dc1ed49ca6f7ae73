"""Client of the Dispatcher's internal API, for workers: HTTPS calls with retries."""

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any
from uuid import UUID

import structlog
from pydantic import TypeAdapter

from trace_etl.api.task import events as event_bodies
from trace_etl.api.task import lifecycle as bodies
from trace_etl.api.task.credentials import Credentials, CredentialsRequest
from trace_etl.http.clients.kept_connections import KeptConnections, NoAnswer
from trace_etl.model.errors import TraceError
from trace_etl.policy.retry import Backoff

_log = structlog.stdlib.get_logger()
_CLAIM_REPLY: TypeAdapter[bodies.Claimed | bodies.NotClaimed] = TypeAdapter(
    bodies.Claimed | bodies.NotClaimed
)
_TIMEOUT = 30.0
_TRANSIENT = {429, 500, 502, 503, 504}
_MAX_SERVER_ERRORS = 5


class Refused(TraceError):
    """The Dispatcher refused the call. A retry would be refused again."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.refusal = code


class Unreachable(TraceError):
    """The Dispatcher did not answer, or answered with a transient error. A retry may succeed."""

    code = "dispatcher_unreachable"
    retryable = True

    def __init__(self, detail: str, status: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        """HTTP status of the answer; None if the Dispatcher did not answer."""


class DispatcherConnection:
    """HTTPS calls of the internal API. Thread-safe."""

    def __init__(self, url: str, ca: Path) -> None:
        self._connections = KeptConnections(url, ssl.create_default_context(cafile=str(ca)))

    def close(self) -> None:
        self._connections.close()

    def _post(
        self, path: str, body: str, headers: Mapping[str, str], timeout: float = _TIMEOUT
    ) -> bytes:
        headers = {**headers, "Content-Type": "application/json"}
        try:
            status, content = self._connections.call("POST", path, body, headers, timeout)
        except NoAnswer as error:
            raise Unreachable(f"{path}: {error}") from error
        if status in _TRANSIENT:
            raise Unreachable(f"{path} answered {status}", status)
        if status != 200:
            raise _read_refusal({**json.loads(content), "status": status})
        return content


class DispatcherClient(DispatcherConnection):
    """Client of workers. Methods that take `stop` retry until an answer arrives or `stop` is set.

    They raise Refused after several answers of 500 in a row.
    """

    def __init__(
        self, url: str, ca: Path, worker_token: Callable[[], str], backoff: Backoff
    ) -> None:
        super().__init__(url, ca)
        self._worker_token = worker_token
        self._backoff = backoff

    def claim(
        self, task_id: UUID, worker_id: str, stop: Event
    ) -> bodies.Claimed | bodies.NotClaimed:
        """Claim a task, with retries. Raises Refused, Unreachable."""
        body = bodies.Claim(task_id=task_id, worker_id=worker_id).model_dump_json()
        reply = self._retry(lambda: self._post_as_worker("/internal/task-claim", body), stop)
        return _CLAIM_REPLY.validate_json(reply)

    def claim_many(
        self, task_ids: Sequence[UUID], worker_id: str, stop: Event
    ) -> dict[UUID, bodies.Claimed]:
        """Claim tasks, with retries. Returns the claimed ones by id. Raises Refused, Unreachable."""
        body = bodies.ClaimMany(task_ids=list(task_ids), worker_id=worker_id)
        text = body.model_dump_json(exclude_unset=True)
        reply = self._retry(lambda: self._post_as_worker("/internal/task-claim-many", text), stop)
        claimed = bodies.ClaimedMany.model_validate_json(reply).claimed
        return {item.task.task_id: item for item in claimed}

    def complete_many(
        self, completions: Sequence[tuple[bodies.Complete, str]], stop: Event
    ) -> list[Refused | None]:
        """Report the ends of attempts, with their tokens and retries. Returns the refusal of each, or None.

        Raises Refused, Unreachable.
        """
        text = render_completions(completions)
        path = "/internal/task-complete-many"
        reply = self._retry(lambda: self._post_as_worker(path, text), stop)
        results = bodies.CompletedMany.model_validate_json(reply).results
        return [
            _read_refusal(result.problem) if isinstance(result, bodies.CompleteRefused) else None
            for result in results
        ]

    def heartbeat(
        self, body: bodies.Heartbeat, token: str, timeout: float
    ) -> bodies.HeartbeatAccepted:
        """Extend the lease. Does not retry; gives up after `timeout` seconds. Raises Unreachable, Refused."""
        headers = {"X-Trace-Task-Capability": token}
        reply = self._post(
            "/v1/task/heartbeat", body.model_dump_json(exclude_none=True), headers, timeout
        )
        return bodies.HeartbeatAccepted.model_validate_json(reply)

    def complete(self, body: bodies.Complete, token: str, stop: Event) -> bodies.CompleteAccepted:
        """Report the end of an attempt, with retries. Raises Refused, Unreachable."""
        headers = {"X-Trace-Task-Capability": token}
        text = body.model_dump_json(exclude_unset=True)
        reply = self._retry(lambda: self._post("/v1/task/complete", text, headers), stop)
        return bodies.CompleteAccepted.model_validate_json(reply)

    def events(
        self, body: event_bodies.Events, token: str, stop: Event
    ) -> event_bodies.EventsAccepted:
        """Report dataset changes while the attempt runs, with retries. Raises Refused, Unreachable."""
        headers = {"X-Trace-Task-Capability": token}
        text = body.model_dump_json(exclude_unset=True)
        reply = self._retry(lambda: self._post("/v1/task/events", text, headers), stop)
        return event_bodies.EventsAccepted.model_validate_json(reply)

    def buffer_publish(
        self, body: bodies.BufferPublish, token: str, stop: Event
    ) -> bodies.BufferPublishAccepted:
        """Publish a batch of a buffered dataset, with retries. Raises Refused, Unreachable."""
        headers = {"X-Trace-Task-Capability": token}
        text = body.model_dump_json()
        reply = self._retry(lambda: self._post("/v1/task/buffer-publish", text, headers), stop)
        return bodies.BufferPublishAccepted.model_validate_json(reply)

    def credentials(self, body: CredentialsRequest, token: str, stop: Event) -> Credentials:
        """Get credentials for the operator of an attempt, with retries. Raises Refused, Unreachable."""
        headers = {"X-Trace-Task-Capability": token}
        text = body.model_dump_json()

        def post() -> bytes:
            worker = {"X-Trace-Worker-Token": self._worker_token()}
            return self._post("/v1/task/credentials", text, {**headers, **worker})

        return Credentials.model_validate_json(self._retry(post, stop))

    def log(self, body: bodies.LogOutput, token: str, timeout: float) -> None:
        """Send a part of the output. Does not retry. Raises Unreachable, Refused."""
        headers = {"X-Trace-Task-Capability": token}
        self._post("/v1/task/logs", body.model_dump_json(), headers, timeout)

    def _post_as_worker(self, path: str, body: str) -> bytes:
        return self._post(path, body, {"X-Trace-Worker-Token": self._worker_token()})

    def pause_after(self, failures: int) -> float:
        """Return the seconds to wait before the next try."""
        return self._backoff.seconds(failures)

    def _retry(self, call: Callable[[], bytes], stop: Event) -> bytes:
        failures = server_errors = 0
        while True:
            try:
                return call()
            except Unreachable as error:
                failures += 1
                # An outage ends; a call that the Dispatcher cannot handle fails each time.
                server_errors = server_errors + 1 if error.status == 500 else 0
                if server_errors == _MAX_SERVER_ERRORS:
                    raise Refused(
                        500, "dispatcher_failed", f"{error.detail} {server_errors} times"
                    ) from error
                _log.warning("dispatcher_unreachable", failures=failures, error=str(error))
                if stop.wait(self.pause_after(failures)):
                    raise


def render_completions(completions: Sequence[tuple[bodies.Complete, str]]) -> str:
    """Return the JSON of `CompleteMany`. A test compares it with the model."""
    # The model would check each body and its token a second time.
    items = [
        f'{body.model_dump_json(exclude_unset=True)[:-1]},"capability_token":{json.dumps(token)}}}'
        for body, token in completions
    ]
    return f'{{"completions":[{",".join(items)}]}}'


def _read_refusal(problem: Mapping[str, Any]) -> Refused:
    code, detail = str(problem.get("code")), str(problem.get("detail"))
    return Refused(int(problem.get("status", 409)), code, detail)


def token_reader(path: Path) -> Callable[[], str]:
    """Return a function that reads a token file's first line, again after each rotation."""
    cached: tuple[float, str] = (-1.0, "")

    def token() -> str:
        nonlocal cached
        modified_at = path.stat().st_mtime
        if modified_at != cached[0]:
            cached = (modified_at, path.read_text().splitlines()[0].strip())
        return cached[1]

    return token
