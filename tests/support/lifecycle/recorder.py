"""Records the calls of clients and loops, so that the history checker can check any run."""

import json
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import psycopg
from psycopg.rows import dict_row

from support import queue_tables
from trace_etl.devtools.history.checker import check
from trace_etl.devtools.history.lines import parse
from trace_etl.devtools.history.report import HistoryReport
from trace_etl.http.clients.dispatcher_client import DispatcherConnection
from trace_etl.http.clients.kept_connections import KeptConnections, NoAnswer
from trace_etl.lite.postgres.databases import Dsns

_CALLS = {
    "/internal/task-claim": "claim",
    "/internal/task-claim-many": "claim_many",
    "/internal/task-fetch": "fetch",
    "/v1/task/heartbeat": "heartbeat",
    "/internal/heartbeat": "heartbeat",
    "/v1/task/complete": "complete",
    "/internal/task-complete": "complete",
    "/v1/task/events": "events",
    "/internal/events": "events",
    "/v1/task/buffer-publish": "buffer_publish",
    "/v1/triggers": "trigger",
    "/v1/dags": "deploy",
}
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_CONSUMERS = """
SELECT i.dataset_uuid, j.job_id, i.dataset_version,
       (SELECT max(v.created_at) FROM job_outputs o JOIN dataset_versions v USING (dataset_version)
         WHERE o.revision_id = j.revision_id) AS since
  FROM job_inputs i JOIN jobs j USING (revision_id)
  JOIN job_revisions r USING (revision_id) WHERE j.active AND r.activation = 'reactive'
   AND i.trigger_index = i.input_index AND r.execution_strategy <> 'WholeDataset'
"""
_STATE_TABLES = {
    "tasks": "SELECT * FROM tasks",
    "task_attempts": "SELECT * FROM task_attempts",
    "events": "SELECT * FROM events",
    "outbox": "SELECT * FROM outbox",
    "partitions": "SELECT * FROM partitions",
    "buffer_publishes": "SELECT * FROM buffer_publishes",
    "datasets": "SELECT dataset_uuid, dataset_version FROM datasets",
    "consumers": _CONSUMERS,
    "deferred_events": "SELECT event_id, job_id FROM deferred_events",
}


class Recorder:
    """Collects the lines of one history. Thread-safe."""

    def __init__(self) -> None:
        self._lines: list[str] = [json.dumps({"history": 1})]
        self._lock = threading.Lock()
        self._anchor = time.time() - time.monotonic()

    def clear(self) -> None:
        """Start a new history."""
        with self._lock:
            self._lines = self._lines[:1]

    def now(self) -> float:
        """Return a Unix time that never decreases."""
        return self._anchor + time.monotonic()

    def add(self, **line: Any) -> None:
        text = json.dumps(line, default=str)
        with self._lock:
            self._lines.append(text)

    # --- clients ----------------------------------------------------------------------------

    def watch(self, client: httpx.Client, actor: str = "") -> httpx.Client:
        """Record every call that this client makes from now on."""
        client._transport = _Recording(client._transport, self, actor)
        return client

    def watch_worker(self, client: DispatcherConnection, actor: str) -> None:
        """Record every call that the client of a worker makes from now on."""
        connections = client._connections
        client._connections = cast("Any", _RecordingConnections(connections, self, actor))

    # --- loops and the clock ----------------------------------------------------------------

    def record_step(
        self, call: str, step: Callable[[], Any], request: dict[str, Any] | None = None
    ) -> Any:
        """Run one pass of a loop and record it. A pass that fails may still have taken effect."""
        began = self.now()
        try:
            result = step()
        except BaseException as error:
            self._add_step(call, request, began, error=repr(error))
            raise
        self._add_step(call, request, began, answer={"status": 200, "body": {"found": result}})
        return result

    def _add_step(
        self, call: str, request: dict[str, Any] | None, began: float, **end: Any
    ) -> None:
        self.add(call=call, request=request or {}, began=began, ended=self.now(), **end)

    def record_expiry(self, task_id: str) -> None:
        """Record that the test is about to move a task's lease or deadline into the past."""
        now = self.now()
        answer = {"status": 200, "body": {}}
        self.add(call="expire", request={"task_id": task_id}, began=now, ended=now, answer=answer)

    # --- the end ----------------------------------------------------------------------------

    def dump(self, dsns: Dsns, *, messages: bool = True) -> None:
        """Add the current database rows. Leave out `messages` if workers consume them."""
        with psycopg.connect(dsns.state) as state, psycopg.connect(dsns.queue) as queue:
            self.dump_from(state, queue if messages else None)

    def dump_from(
        self, state: psycopg.Connection[Any], queue: psycopg.Connection[Any] | None
    ) -> None:
        """Add the current database rows, read over open connections."""
        with state.transaction():
            state.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            rows = {name: _rows(state, query) for name, query in _STATE_TABLES.items()}
        if queue is not None:
            rows["messages"] = _rows(queue, queue_tables.MESSAGES)
        self.add(dump=list(rows))
        for table, table_rows in rows.items():
            for row in table_rows:
                self.add(table=table, row={k: v for k, v in row.items() if type(v) is not bytes})

    @property
    def lines(self) -> list[str]:
        with self._lock:
            return list(self._lines)

    def calls(self) -> list[dict[str, Any]]:
        """Return the calls recorded so far."""
        return [line for line in map(json.loads, self.lines) if "call" in line]

    def verdict(self) -> HistoryReport:
        return check(parse(self.lines))

    def save(self, path: Path) -> Path:
        path.write_text("\n".join(self.lines) + "\n")
        return path


def _rows(conn: psycopg.Connection[Any], query: str) -> list[dict[str, Any]]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query).fetchall()


class _Recording(httpx.BaseTransport):
    def __init__(self, inner: httpx.BaseTransport, recorder: Recorder, actor: str) -> None:
        self._inner = inner
        self._recorder = recorder
        self._actor = actor

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        call = {
            "at": f"{request.url.scheme}://{request.url.netloc.decode()}",
            "actor": self._actor,
            "call": _call_name(request.url.path),
            "request": _request_body(request),
        }
        with _recorded(self._recorder, call) as line:
            response = self._inner.handle_request(request)
            content = response.read()
            line["answer"] = {"status": response.status_code, "body": _body(content)}
        # The body is already read and decoded: return a copy that can be read again.
        return httpx.Response(
            response.status_code, headers=_headers_without_encoding(response), content=content
        )

    def close(self) -> None:
        self._inner.close()


class _RecordingConnections:
    def __init__(self, inner: KeptConnections, recorder: Recorder, actor: str) -> None:
        self._inner, self._recorder, self._actor = inner, recorder, actor

    def call(self, method: str, path: str, body: str, *rest: Any) -> tuple[int, bytes]:
        request = json.loads(body)
        call = {"actor": self._actor, "call": _call_name(path), "request": request}
        with _recorded(self._recorder, call) as line:
            status, content = self._inner.call(method, path, body, *rest)
            line["answer"] = {"status": status, "body": _body(content)}
        return status, content

    def close(self) -> None:
        self._inner.close()


@contextmanager
def _recorded(recorder: Recorder, call: dict[str, Any]) -> Generator[dict[str, Any]]:
    line: dict[str, Any] = {**call, "began": recorder.now()}
    try:
        yield line
    except httpx.TransportError as error:
        line |= {"error": repr(error), "sent": not isinstance(error, _NEVER_SENT)}
        raise
    except NoAnswer as error:
        line |= {"error": repr(error), "sent": error.may_have_arrived}
        raise
    finally:
        if "answer" not in line and "error" not in line:
            line["error"] = "interrupted"
        recorder.add(**line, ended=recorder.now())


def _headers_without_encoding(response: httpx.Response) -> dict[str, str]:
    return {k: v for k, v in response.headers.items() if k.lower() != "content-encoding"}


def _call_name(path: str) -> str:
    return "cancel" if path.endswith("/cancel") else _CALLS.get(path, path)


def _request_body(request: httpx.Request) -> dict[str, Any]:
    if request.content:
        return json.loads(request.content)
    task_id = request.url.params.get("task_id") or request.url.path.split("/")[-2]
    return {"task_id": task_id}


def _body(content: bytes) -> dict[str, Any] | None:
    """Return the answer without tokens: a history must not contain secrets."""
    try:
        body = json.loads(content, object_hook=_without_token)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _without_token(value: dict[str, Any]) -> dict[str, Any]:
    return {k: "…" if k == "capability_token" and v else v for k, v in value.items()}
