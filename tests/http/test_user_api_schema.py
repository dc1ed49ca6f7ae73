"""The user API against its own OpenAPI document: no 5xx, no undocumented answer."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Route

from support.data.buffered import publish_unwritten
from support.fuzz.fuzzing import Fuzzer, fuzzed_dispatcher
from support.fuzz.openapi_calls import (
    bounded,
    bounded_malformed,
    labels,
    negative,
    positive,
    validate,
)
from support.lifecycle.lifecycle import Bench
from support.reference import DIRECTORY, openapi
from support.services.dispatcher import Secrets
from support.services.postgres import Templates
from support.users import new_user
from trace_etl.dispatcher.user_api.openapi import pages

API = "user-api"
CHECKS = {
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
}
STREAM_ROUTE = "GET /v1/changes"  # has its own tests
OPERATIONS = {label: op for label, op in labels(API).items() if label != STREAM_ROUTE}


def test_the_document_is_served_without_a_token_and_describes_tokens_and_errors(
    shared: Bench,
) -> None:
    reply = shared.user.get("/openapi.json", headers={"Authorization": ""})
    assert reply.status_code == 200
    served = reply.json()
    documented = openapi(API)
    assert served["paths"] == documented["paths"]
    assert served["components"] == documented["components"]
    for path in ("/docs", "/redoc"):  # they would load scripts of a third party
        assert shared.user.get(path).status_code == 404
    for path, operations in served["paths"].items():
        for operation in operations.values():
            if path.startswith("/v1/"):
                signed = path.startswith("/v1/webhooks/")
                assert operation["security"] == ([] if signed else [{"user": []}])
                assert {"401", "403", "422", "503"} < set(operation["responses"])


def test_the_reference_pages_of_the_user_api_are_current() -> None:
    for name, content in pages().items():
        assert (DIRECTORY / name).read_text() == content, "stale: run `make reference`"


def test_no_route_is_built_during_a_request(shared: Bench) -> None:
    """FastAPI's included routers build theirs when the first request arrives, and block the others."""
    assert all(isinstance(route, Route) for route in shared.live.service.user.routes)


def failed_batch(shared: Bench) -> str:
    publish_id = publish_unwritten(shared)
    result = {"publish_id": publish_id, "status": "Failed", "error_code": "bad_batch"}
    path, report = "/internal/buffer-complete", {"results": [result]}
    assert shared.http.post(path, json=report, headers=shared.sink_headers).status_code == 200
    return publish_id


class Caller:
    """Sends generated cases as the local user, and counts the answers."""

    def __init__(self, shared: Bench, url: str | None = None) -> None:
        self._shared = shared
        self._url = url or str(shared.user.base_url)
        self._dag = shared.dag()
        self._ids = shared.tasks(3, dag=self._dag)
        query = {"dag": self._dag.name}
        self._event = shared.user.get("/v1/events", params=query).json()["items"][0]["event_id"]
        body = {"dag": self._dag.name, "job": "work", "start": 0, "end": 99}
        self._backfill = shared.user.post("/v1/backfills", json=body).json()["backfill_id"]
        with new_user(shared, "reader") as reader:
            self._user = reader.get("/v1/me").json()["name"]
        made = shared.claimed(self._ids[2])
        shared.complete(made, datasets_published=[shared.write_output(made)])
        self._partition = made.scope["partition_key"]
        self._batch = failed_batch(shared)
        versions = shared.user.get(f"/v1/dags/{self._dag.name}/versions").json()["items"]
        self._version = versions[0]["dag_version"]
        self.seen: Counter[int] = Counter()

    def send(self, case: Any, *, real: bool) -> None:
        """Send a case and compare the answer with the document."""
        reply = self.call(case, real)
        self.seen[reply.status_code] += 1
        validate(case, reply, CHECKS)

    def call(self, case: Any, real: bool) -> httpx.Response:
        """Send a case; a `real` case refers to existing tasks, jobs and users."""
        if real:
            self._use_existing_ids(case)
        sent = case.as_transport_kwargs(base_url=self._url)
        return self._shared.user.request(
            sent["method"],
            sent["url"],
            params=sent.get("params"),
            headers=dict(sent["headers"] or {}),
            content=json.dumps(sent["json"]) if "json" in sent else sent.get("data"),
        )

    def _use_existing_ids(self, case: Any) -> None:
        """Replace generated ids and names with existing ones."""
        known = {
            "task_id": self._ids[0],
            "name": self._dag.name if case.path.startswith("/v1/dags/") else self._dag.published,
            "dag": self._dag.name,
            "job": "work",
            "event_id": self._event,
            "backfill_id": self._backfill,
            "user": self._user,
            "partition_key": self._partition,
            "publish_id": self._batch,
            "dag_version": self._version,
        }
        if case.path.startswith("/v1/udf/uploads/"):
            known |= {"upload_id": self._start_upload(), "number": 0}
            case.body = b"x" if case.method == "PUT" else case.body
        if case.path.startswith("/v1/ids/"):
            known |= {"kind": "task", "prefix": self._ids[0][:20]}
        if case.path == "/v1/progress":
            case.body = {"dag": self._dag.name, "event_ids": [self._event]}
        if case.path.endswith("/remove"):  # the DAG of the other calls must stay
            known["name"] = self._shared.dag().name
        if case.path.endswith("/drop"):  # the batch of the other calls must stay
            known["publish_id"] = failed_batch(self._shared)
        case.path_parameters = {k: known.get(k, v) for k, v in (case.path_parameters or {}).items()}
        if case.path == "/v1/triggers":
            case.body = {"dag": self._dag.name, "job": "request", "start": 0, "end": 9}
        if case.path.endswith("/invalidations") and case.method == "POST":
            case.body = {"partition_key": self._partition, "reason": "it is wrong"}
        if case.path.startswith("/v1/pauses") and case.method == "POST":
            case.body = {"dag": self._dag.name, "job": "after"}
        if case.path in ("/v1/backfills", "/v1/backfills/preview") and case.method == "POST":
            case.body = {"dag": self._dag.name, "job": "work", "start": 0, "end": 9}

    def _start_upload(self) -> str:
        self._shared.rows("UPDATE udf_uploads SET ended_at = now()")  # of generated names
        body = {"name": "rule", "sha256": "0" * 64, "size_bytes": 1}
        return self._shared.user.post("/v1/udf/uploads", json=body).json()["upload_id"]


@pytest.fixture(scope="module")
def caller(shared: Bench) -> Caller:
    return Caller(shared)


# Generated text is never a valid DAG, and a DAG's first version has no previous or building version.
NEVER_WELL = {
    "POST /v1/udf/uploads/{upload_id}/finalize",
    "POST /v1/checks/accept",
    "POST /v1/dags",
    "POST /v1/plans",
    "POST /v1/dags/{name}/rollback",
    "POST /v1/dags/{name}/promote",
    "POST /v1/webhooks/{dag}/{job}",  # generated calls have no valid signature
}


@pytest.mark.parametrize("label", OPERATIONS)
def test_well_formed_calls_get_documented_answers_of_the_user_api(
    caller: Caller, label: str
) -> None:
    before = Counter(caller.seen)

    @bounded
    @given(positive(API, label), st.booleans())
    def call(case: Any, real: bool) -> None:
        caller.send(case, real=real)

    call()
    answers = caller.seen - before
    assert answers[200] or label in NEVER_WELL, answers


# Nearly every generated text is a valid name: unusual ones have a test below.
MALFORMABLE = [
    label
    for label, op in OPERATIONS.items()
    if ("requestBody" in op or "parameters" in op)
    and not any(word in label for word in ("{name}", "{user}", "{dag}"))
]


@pytest.mark.parametrize("label", MALFORMABLE)
def test_malformed_calls_are_refused_as_documented_by_the_user_api(
    caller: Caller, label: str
) -> None:
    @bounded_malformed
    @given(negative(API, label))
    def call(case: Any) -> None:
        caller.send(case, real=False)

    call()


def test_random_calls_of_the_user_api_do_no_harm(
    templates: Templates, secrets: Secrets, tmp_path: Path
) -> None:
    with fuzzed_dispatcher(templates, secrets, tmp_path) as (process, own):
        caller = Caller(own, process.api_url)
        assert Fuzzer(process, caller.call).run(API, OPERATIONS, MALFORMABLE)


@pytest.mark.parametrize("label", [name for name in OPERATIONS if "/v1/" in name])
def test_every_call_of_the_user_api_needs_a_valid_token(shared: Bench, label: str) -> None:
    method, path = label.split(" ")
    path = re.sub(r"\{\w+\}", "00000000-0000-0000-0000-000000000000", path)
    before = shared.dump()
    for token in ("", "Bearer", "Bearer x", f"Basic {shared.live.secrets.user_token}"):
        reply = shared.user.request(method, path, headers={"Authorization": token}, json={})
        assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated")
    assert shared.dump() == before


@pytest.mark.parametrize(
    "path",
    [
        "/v1/tasks?dag=%00",
        "/v1/tasks?job=%00",
        "/v1/tasks?status=Queued%00",
        "/v1/tasks?after=%00",
        "/v1/tasks?after=2026-01-01T00:00:00/00000000-0000-0000-0000-000000000000%00",
        "/v1/tasks?limit=99999999999999999999999",
        "/v1/tasks/summary?dag=%00",
        "/v1/tasks/%00",
        "/v1/jobs?dag=%00",
        "/v1/jobs?source_kind=%00",
        "/v1/datasets/%00",
        "/v1/datasets/%ff",
        "/v1/outbox?failed=%00",
        "/v1/dags?x=%00",
    ],
)
def test_unusual_text_in_a_query_or_a_path_causes_no_server_error(shared: Bench, path: str) -> None:
    reply = shared.user.get(path)
    assert reply.status_code in (200, 404, 422), reply.text
    if "after=" in path or "limit=" in path:
        assert reply.status_code == 422


@pytest.mark.parametrize("path", ["/v1/dags", "/v1/triggers"])
@pytest.mark.parametrize("body", [b"\xff", b"{", b"", b"[" * 100_000, b'{"text": "\\u0000"}'])
def test_a_body_that_cannot_be_read_is_malformed(shared: Bench, path: str, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    reply = shared.user.post(path, content=body, headers=headers)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid"), reply.text
    assert reply.json()["errors"]


@pytest.mark.parametrize("value", ["2024-13-45", "1" * 5000, "!!int x"], ids=lambda v: v[:12])
def test_a_value_that_yaml_cannot_read_is_refused_with_its_position(
    shared: Bench, value: str
) -> None:
    text = f"name: a\njobs:\n  - {{name: {value}, source: {{kind: manual}}, outputs: [o]}}\n"
    reply = shared.user.post("/v1/plans", json={"text": text})
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid"), reply.text
    assert (reply.json()["errors"][0]["field"], reply.json()["errors"][0]["line"]) == (
        "jobs[0].name",
        3,
    )


_COLUMNS = {"job": "a", "output": "b", "columns": []}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/progress", {f"k{n}": 1 for n in range(1000)}, "has 1000 fields; known fields: dag, "),
        ("/v1/dags", {"text": "x", "columns": [{}] * 1000}, "is required and missing"),
        ("/v1/dags", {"text": "x", "columns": [_COLUMNS] * 10_001}, "at most 10000 items"),
    ],
    ids=["unknown fields", "faulty items", "items"],
)
def test_a_body_with_many_faults_gets_a_short_answer(
    shared: Bench, path: str, body: dict[str, Any], message: str
) -> None:
    """Rendering each fault would block other requests: 2 MiB of unknown fields took seconds."""
    reply = shared.user.post(path, json=body)
    assert reply.status_code == 422 and len(reply.json()["errors"]) <= 3, reply.text[:500]
    assert message in reply.json()["detail"]


def test_many_unknown_parameters_get_a_short_answer(shared: Bench) -> None:
    reply = shared.user.get("/v1/tasks", params={f"k{n}": 1 for n in range(500)})
    assert reply.status_code == 422 and len(reply.json()["errors"]) == 20
