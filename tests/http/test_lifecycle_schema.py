"""The internal listener against its own OpenAPI document: no 5xx, no undocumented answer."""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from support.data.buffered import Producer, batch_target
from support.fuzz.fuzzing import Fuzzer, fuzzed_dispatcher
from support.fuzz.openapi_calls import (
    bounded,
    bounded_malformed,
    labels,
    negative,
    positive,
    validate,
)
from support.lifecycle.lifecycle import Attempt, Bench
from support.reference import DIRECTORY, openapi
from support.services.dispatcher import Secrets
from support.services.postgres import Templates
from trace_etl.dispatcher.task_api.endpoints import ENDPOINTS
from trace_etl.dispatcher.task_api.openapi import pages

API = "task-api"
DOCUMENT = openapi(API)
OPERATIONS = {label: op for label, op in labels(API).items() if "/healthz" not in label}
ALIASES = {f"{call.method} {path}" for call in ENDPOINTS for path in call.aliases}


# --- the document itself ----------------------------------------------------------------------


def test_the_document_is_served_without_a_token_and_matches_the_code(shared: Bench) -> None:
    reply = shared.http.get("/openapi.json")
    assert reply.status_code == 200
    assert reply.json() == DOCUMENT
    again = shared.http.get("/openapi.json", headers={"If-None-Match": reply.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_reference_pages_are_current() -> None:
    """Regenerate them with `python -m trace_etl.dispatcher.task_api.openapi docs/reference`."""
    assert {name: (DIRECTORY / name).read_text() for name in pages()} == pages()


def test_every_schema_of_the_document_is_valid() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_call_and_alias_is_documented_with_its_token() -> None:
    paths = DOCUMENT["paths"]
    for call in ENDPOINTS:
        for path in (call.path, *call.aliases):
            operation = paths[path][call.method.lower()]
            assert operation.get("security") == (None if call.auth == "none" else [{call.auth: []}])
            assert bool(operation.get("deprecated")) == (path != call.path)
    schemes = DOCUMENT["components"]["securitySchemes"]
    assert {s["name"] for s in schemes.values()} == {
        "X-Trace-Worker-Token",
        "X-Trace-Task-Capability",
        "Authorization",
    }


def test_a_wrong_method_is_refused_with_the_allowed_ones(shared: Bench) -> None:
    reply = shared.http.get("/v1/task/heartbeat")
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert reply.json()["code"] == "method_not_allowed"


# --- what it answers --------------------------------------------------------------------------

PUBLISH = "/v1/task/buffer-publish"
CHECKS = {
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
}


class Caller:
    """Sends generated cases with valid tokens, and counts the answers."""

    def __init__(self, shared: Bench, url: str | None = None) -> None:
        self._shared = shared
        self._url = url or str(shared.http.base_url)
        self._ids = (task_id for _ in itertools.count() for task_id in shared.tasks(150))
        self._attempt = self._next()
        producer = Producer(shared, f"alerts_{uuid4().hex[:12]}")
        producer.deploy("one")
        self._buffered = producer.attempt("one")
        self.seen: Counter[int] = Counter()

    def send(self, case: Any, *, live: bool) -> None:
        """Send a case and compare the answer with the document."""
        reply = self.call(case, live)
        self.seen[reply.status_code] += 1
        validate(case, reply, CHECKS)

    def call(self, case: Any, live: bool) -> httpx.Response:
        """Send a case; a `live` case refers to existing tasks and valid leases."""
        if self._shared.status(self._attempt.task_id) != "Running":
            self._attempt = self._next()
        if live:
            self._use_existing_ids(case)
        sent = case.as_transport_kwargs(base_url=self._url)
        attempt = self._buffered if case.path == PUBLISH else self._attempt
        tokens = {
            **self._shared.worker_headers,
            **self._shared.sink_headers,
            "X-Trace-Task-Capability": attempt.token,
        }
        return self._shared.http.request(
            sent["method"],
            sent["url"],
            params=sent.get("params"),
            headers={**dict(sent["headers"] or {}), **tokens},
            content=json.dumps(sent["json"]) if "json" in sent else sent.get("data"),
        )

    def _next(self) -> Attempt:
        return self._shared.claimed(next(self._ids))

    def _use_existing_ids(self, case: Any) -> None:
        if case.path == "/internal/task-claim":
            case.body = {**case.body, "task_id": next(self._ids)}
        elif case.path == "/internal/buffer-complete":
            report = {"publish_id": self._batch(), "row_count": 1, "error_code": "bad_batch"}
            results = [{**result, **report} for result in case.body["results"][:1]]
            case.body = exclude_floats({"results": results})
        elif case.path == "/internal/buffer-fetch":
            case.body = {"publish_ids": [self._batch()]}
        elif case.query:
            case.query["task_id"] = self._attempt.task_id
        elif case.path == PUBLISH:
            target = {"dedupe_scope": None, "dataset_version": None, **batch_target(self._buffered)}
            case.body = exclude_floats({**case.body, **self._buffered.fence, **target})
        elif isinstance(case.body, dict):
            case.body = exclude_floats(
                {**case.body, **self._attempt.fence, **self._target(case.body)}
            )

    def _batch(self) -> str:
        reply = self._shared.publish(self._buffered, **batch_target(self._buffered))
        return reply.json()["publish_id"]

    def _target(self, body: dict[str, Any]) -> dict[str, Any]:
        home = {name: self._attempt.output[name] for name in ("dataset_uuid", "dataset_version")}
        lists = {
            name: [
                align_partition_key(
                    {**item, **home, "dataset": None} if "dataset" in item else {**item, **home}
                )
                for item in body[name][:1]
            ]
            for name in ("events", "outputs", "datasets_published", "invalidations")
            if name in body
        }
        if body.get("status", "Completed") != "Completed":
            lists = {
                key: [] for key in lists
            }  # the schema states this rule only in its description
        return lists


def align_partition_key(item: dict[str, Any]) -> dict[str, Any]:
    """Make a partition key match its block range, which JSON Schema cannot express."""
    if item.get("partition_key") is None or item.get("start") is None or item.get("end") is None:
        return {key: value for key, value in item.items() if key not in ("start", "end")}
    start, end = sorted((int(item["start"]), int(item["end"])))
    return {**item, "start": start, "end": end, "partition_key": f"{start}-{end}"}


def exclude_floats(value: Any) -> Any:
    """Exclude numbers like 1.0, which are integers in JSON Schema but not in Trace."""
    if isinstance(value, dict):
        return {key: exclude_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [exclude_floats(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@pytest.fixture(scope="module")
def caller(shared: Bench) -> Caller:
    return Caller(shared)


@pytest.mark.parametrize("label", OPERATIONS)
def test_well_formed_calls_get_documented_answers(caller: Caller, label: str) -> None:
    before = Counter(caller.seen)

    @bounded
    @given(positive(API, label), st.booleans())
    def call(case: Any, live: bool) -> None:
        caller.send(case, live=live)

    call()
    assert (caller.seen - before)[200]


@pytest.mark.parametrize(
    "label",
    [name for name, op in OPERATIONS.items() if "requestBody" in op and name not in ALIASES],
)
def test_malformed_calls_are_refused_as_documented(caller: Caller, label: str) -> None:
    before = Counter(caller.seen)

    @bounded_malformed
    @given(negative(API, label))
    def call(case: Any) -> None:
        caller.send(case, live=False)

    call()
    assert set(caller.seen - before) == {422}


def test_a_body_with_many_faults_gets_a_short_answer(shared: Bench) -> None:
    token = {"X-Trace-Worker-Token": shared.live.secrets.worker_token}
    body = {f"k{n}": 1 for n in range(5000)}
    reply = shared.http.post("/internal/task-claim", json=body, headers=token)
    assert reply.status_code == 422
    (fault,) = reply.json()["errors"]
    assert fault["field"] == "body" and fault["message"].startswith("has 5002 faults")


def test_random_calls_do_no_harm(templates: Templates, secrets: Secrets, tmp_path: Path) -> None:
    malformable = [label for label, op in OPERATIONS.items() if "requestBody" in op]
    with fuzzed_dispatcher(templates, secrets, tmp_path) as (process, own):
        caller = Caller(own, process.internal_url)
        assert Fuzzer(process, caller.call).run(API, OPERATIONS, malformable)
