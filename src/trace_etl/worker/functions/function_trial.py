"""Try a function before it is pushed: the same sandbox and broker, with a stand-in for the platform in this process.

Queries run on a real stack. What the function publishes, emits or writes is collected and shown, and
changes nothing.
"""

import json
import re
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote
from uuid import UUID, uuid4, uuid5

import httpx
from pydantic import ValidationError

from trace_etl.api.task.credentials import OBJECTS_PATH, Credentials
from trace_etl.api.task.invocation import Invocation
from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.dag.runtimes import Runtime
from trace_etl.model.errors import TraceError
from trace_etl.objects.file_store import FileStore
from trace_etl.policy.bundles import BuiltBundle
from trace_etl.sandbox.broker.broker import PlatformClients
from trace_etl.sandbox.process import Program, SandboxedProcess
from trace_etl.spark.dispatcher_link import DispatcherLink
from trace_etl.worker.functions.bundle_programs import BOOTSTRAP, NODE_ENDINGS
from trace_etl.worker.functions.environments import EnvironmentPool
from trace_etl.worker.functions.function_results import Bundles
from trace_etl.worker.functions.function_runner import FunctionRunner
from trace_etl.worker.functions.lambda_runner import LambdaRunner

RunQuery = Callable[[str, Any], httpx.Response]
"""Runs one SELECT with its parameters on a stack."""
_ROOT = "trial"
_CREDENTIALS_LIFE = timedelta(hours=1)
_NAMES = UUID("5a1e3e0c-6a2c-4c59-9d3c-0f3c5c1f7f11")
_WITH = re.compile(r"\s*with\s+(recursive\s+)?", re.IGNORECASE)


class BadEvent(TraceError, code="bad_event"):
    """The event cannot start a function. The message names the field."""


@dataclass
class Trial:
    """What a function did."""

    published: dict[str, list[dict[str, Any]]] = field(
        default_factory=dict[str, list[dict[str, Any]]]
    )
    """Rows by output."""
    events: list[Any] = field(default_factory=list[Any])
    objects: dict[str, bytes] = field(default_factory=dict[str, bytes])
    output: bytearray = field(default_factory=bytearray)
    error: TraceError | OSError | None = None


def make_task(
    event: Mapping[str, Any], bundle: BuiltBundle, *, name: str, handler: str, runtime: str
) -> Invocation:
    """Complete the payload of a task from what the user wrote. Raises BadEvent.

    Of `inputs` only the names are needed, of `outputs` too; everything else has a default.
    """
    task_id = uuid4()
    url = f"s3://{_ROOT}/bundle.zip"
    given: dict[str, Any] = {"config": {}, "timeout_seconds": 300, **event}
    fixed = {
        "task_id": task_id,
        "attempt": 1,
        "job": {"dag_name": _ROOT, "name": name},
        "operator": "udf",
        "runtime": runtime,
        "udf": {"bundle": name, "sha256": bundle.sha256, "handler": handler, "bundle_url": url},
        "inputs": [_make_edge("input", n, e) for n, e in _list(event, "inputs")],
        "outputs": [_make_edge("output", n, e) for n, e in _list(event, "outputs")],
        "scratch_ref": _make_storage(f"scratch/{task_id}/"),
        "export_ref": _make_storage(f"exports/{task_id}/"),
        "lease_token": uuid4(),
        "lease_expires_at": datetime.now(UTC),
        "capability_token": "a-trial-has-no-token",
        "bundle_url": url,
        "org_id": UUID(int=0),
    }
    try:
        return Invocation.model_validate({**given, **fixed})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadEvent(f"{where}: {first['msg']}") from error


def list_views(event: Mapping[str, Any]) -> dict[str, str]:
    """Return the SELECT of each input that has one. The others are datasets with the input's name."""
    return {entry["name"]: entry["sql"] for _, entry in _list(event, "inputs") if "sql" in entry}


def choose_runtime(directory: Path, handler: str | None) -> tuple[str, str]:
    """Return the runtime and the handler of a directory. Raises BadEvent if it has several modules."""
    if (directory / BOOTSTRAP).is_file():
        return "ecs_udf_rust", handler or BOOTSTRAP
    modules = [p for p in sorted(directory.iterdir()) if p.suffix in (".py", *NODE_ENDINGS)]
    stem = handler.rpartition(".")[0] if handler else None
    found = [p for p in modules if stem in (None, p.stem)]
    if len(found) != 1:
        names = ", ".join(path.name for path in modules) or "no module"
        raise BadEvent(
            f"--handler: name the function, such as rule.handler; {directory} has {names}"
        )
    runtime = "ecs_udf_python" if found[0].suffix == ".py" else "ecs_udf_ts"
    return runtime, handler or f"{found[0].stem}.handler"


def _list(event: Mapping[str, Any], kind: str) -> list[tuple[int, Mapping[str, Any]]]:
    rule = f'{kind}: must be a list such as [{{"name": "receivers"}}]'
    entries: object = event.get(kind, [])
    if not isinstance(entries, list):
        raise BadEvent(rule)
    listed = cast("list[Any]", entries)
    for entry in listed:
        if not isinstance(entry, dict) or not isinstance(cast("Any", entry).get("name"), str):
            raise BadEvent(rule)
    return list(enumerate(listed))


def _make_edge(kind: str, number: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    made = {"dataset_uuid": uuid5(_NAMES, entry["name"]), "dataset_version": UUID(int=1)}
    storage = {"storage_ref": _make_storage(f"buffers/{number}/")} if kind == "output" else {}
    return {f"{kind}_index": number, "name": entry["name"], **made, **storage}


def _make_storage(prefix: str) -> dict[str, str]:
    return {"scheme": "file", "bucket": _ROOT, "prefix": prefix}


def run_trial(
    task: Invocation,
    bundle: BuiltBundle,
    runtime: Runtime,
    views: Mapping[str, str],
    query: RunQuery,
) -> Trial:
    """Run a function once, as its runtime would. `views` maps an input to the SELECT that it stands for."""
    trial = Trial()
    outputs = {str(output.dataset_uuid): output.name for output in task.outputs}
    platform = _TrialPlatform(trial, outputs, views, query)
    with (
        tempfile.TemporaryDirectory(prefix="trace-trial-") as place,
        httpx.Client(base_url="https://trial", transport=platform) as client,
    ):
        objects = FileStore(Path(place) / "objects")
        objects.put(f"{_ROOT}/bundle.zip", bundle.content)
        bundles = Bundles(objects, {task.runtime: runtime})
        upstream = PlatformClients(client, client)
        try:
            _run(task, bundles, upstream, Path(place) / "functions", trial)
        except (TraceError, OSError) as error:
            trial.error = error
    return trial


def _run(
    task: Invocation, bundles: Bundles, upstream: PlatformClients, place: Path, trial: Trial
) -> TaskResult:
    def start(program: Program, on_output: Callable[[bytes], None]) -> SandboxedProcess:
        return SandboxedProcess(program, on_output=on_output)

    is_late = threading.Event()
    link = DispatcherLink(
        lambda events, invalidations=(): None,
        lease_token=task.lease_token,
        token=lambda: task.capability_token,
        is_interrupted=is_late.is_set,
        log=trial.output.extend,
    )
    if bundles.runtime(task).launcher != "lambda":
        return FunctionRunner(bundles, upstream, place, start).run(task, link)
    limits = {task.runtime: None}
    pool = EnvironmentPool(place, upstream, start, max_environments=1, idle_limits=limits)
    runner = LambdaRunner(bundles, pool)

    def interrupt() -> None:
        is_late.set()
        runner.cancel(task.task_id, task.attempt)

    timer = threading.Timer(task.timeout_seconds, interrupt)
    timer.start()
    try:
        return runner.run(task, link)
    finally:
        timer.cancel()
        pool.close()


class _TrialPlatform(httpx.BaseTransport):
    """Answers what the broker asks the platform for."""

    def __init__(
        self,
        trial: Trial,
        outputs: Mapping[str, str],
        views: Mapping[str, str],
        query: RunQuery,
    ) -> None:
        self._trial, self._outputs, self._views, self._query = trial, outputs, views, query
        self._written: set[str] = set()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path, content = request.url.path, request.read()
        if path == "/v1/task/query":
            body = json.loads(content)
            return self._query(_insert_views(body["sql"], self._views), body.get("params"))
        if path.startswith(OBJECTS_PATH):
            return self._serve_object(request, path, content)
        if path == "/v1/task/credentials":
            return _offer_objects(json.loads(content))
        if path == "/v1/task/buffer-publish":
            return self._publish(json.loads(content))
        if path == "/v1/task/events":
            self._trial.events += json.loads(content)["events"]
        return httpx.Response(200, json={"cancel_requested": False})

    def _serve_object(self, request: httpx.Request, path: str, content: bytes) -> httpx.Response:
        url = "s3://" + unquote(path.removeprefix(OBJECTS_PATH))
        if request.method == "PUT":
            if request.headers.get("if-none-match") == "*" and url in self._written:
                return _refuse(412, "precondition_failed", f"{url} exists")
            self._written.add(url)
            self._trial.objects[url] = content
        if (found := self._trial.objects.get(url)) is None:
            return _refuse(404, "not_found", f"no object {url}; a trial has only what it wrote")
        return httpx.Response(200, content=b"" if request.method == "PUT" else found)

    def _publish(self, body: Mapping[str, Any]) -> httpx.Response:
        output = self._outputs.get(body["dataset_uuid"])
        batch = self._trial.objects.pop(body["batch_uri"], None)
        if output is None or batch is None:
            return _refuse(422, "invalid", "batch_uri: no such batch, or no such output")
        rows = [json.loads(line) for line in batch.splitlines()]
        self._trial.published.setdefault(output, []).extend(rows)
        return httpx.Response(200, json={})


def _offer_objects(body: Mapping[str, Any]) -> httpx.Response:
    """Answer that objects are read and written by the object calls."""
    scratch, export = (
        _make_storage(f"{kind}/{body['task_id']}/") for kind in ("scratch", "exports")
    )
    offer = Credentials(
        kind="objects",
        expires_at=datetime.now(UTC) + _CREDENTIALS_LIFE,
        read_prefixes=[],
        write_prefixes=[],
        scratch_prefix=f"s3://{scratch['bucket']}/{scratch['prefix']}",
        export_prefix=f"s3://{export['bucket']}/{export['prefix']}",
        objects_path=OBJECTS_PATH,
    )
    return httpx.Response(200, json=offer.model_dump(mode="json"))


def _insert_views(sql: str, views: Mapping[str, str]) -> str:
    """Return a query in which each input is a subquery."""
    names = {name: '"' + name.replace('"', '""') + '"' for name in views}
    parts = ", ".join(f"{names[name]} AS ({select})" for name, select in views.items())
    if not parts:
        return sql
    found = _WITH.match(sql)
    if found is None:
        return f"WITH {parts} {sql}"
    return f"WITH {found[1] or ''}{parts}, {sql[found.end() :]}"


def _refuse(status: int, code: str, detail: str) -> httpx.Response:
    return httpx.Response(status, json={"status": status, "code": code, "detail": detail})
