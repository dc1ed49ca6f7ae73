"""Every route of the user API answers 404 for ids and names of another org."""

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from support.data.buffered import publish_unwritten
from support.lifecycle.lifecycle import Bench
from support.reference import openapi
from support.users import new_org, new_user
from trace_etl.dispatcher.user_api.roles import ROLES, SIGNED

PATHS = openapi("user-api")["paths"]


def parameters(label: str) -> dict[str, Any]:
    method, path = label.split(" ")
    return {p["name"]: p for p in PATHS[path][method.lower()].get("parameters", [])}


def required_query(label: str) -> list[str]:
    return [n for n, p in parameters(label).items() if p["in"] == "query" and p["required"]]


QUERY = {"until": "2030-01-01T00:00:00Z"}
LISTS = [label for label in ROLES if "limit" in parameters(label) and "{" not in label]
# A route without a body must answer 404 because of its path alone.
ADDRESSED = [
    label
    for label, needed in ROLES.items()
    if "{" in label
    and needed != SIGNED
    and "requestBody" not in PATHS[label.split(" ")[1]][label.split(" ")[0].lower()]
]


@dataclass(frozen=True)
class OtherOrg:
    """Objects of another org, by the path parameter that refers to them."""

    ids: dict[str, str]
    dag: str
    dataset: str

    def path(self, label: str) -> str:
        names = {
            **self.ids,
            "name": self.dataset if "/datasets/" in label else self.dag,
        }
        path = re.sub(r"\{(\w+)\}", lambda match: names[match[1]], label.split(" ")[1])
        return f"{path}?{urlencode({name: QUERY[name] for name in required_query(label)})}"


@pytest.fixture(scope="module")
def other_org(shared: Bench) -> OtherOrg:
    dag = shared.dag()
    attempt = shared.attempt(dag=dag)
    published = shared.write_output(attempt)
    publish_id = publish_unwritten(shared)
    reply = shared.complete(attempt, datasets_published=[published], events=[attempt.event()])
    assert reply.status_code == 200, reply.text
    shared.live.drain()
    event = shared.user.get("/v1/events", params={"dag": dag.name}).json()["items"][0]
    request = {"dag": dag.name, "job": "work", "start": 0, "end": 99, "chunk": 10}
    backfill = shared.user.post("/v1/backfills", json=request)
    assert backfill.status_code == 200, backfill.text
    bundle = {"name": "rule", "sha256": "0" * 64, "size_bytes": 1}
    upload = shared.user.post("/v1/udf/uploads", json=bundle)
    assert upload.status_code == 200, upload.text
    ids = {
        "upload_id": upload.json()["upload_id"],
        "task_id": attempt.task_id,
        "event_id": event["event_id"],
        "dag": dag.name,
        "job": "work",
        "user": "local",
        "partition_key": "0-9",
        "publish_id": publish_id,
        "backfill_id": backfill.json()["backfill_id"],
        "kind": "task",
        "prefix": attempt.task_id[:18],
        "dag_version": shared.user.get(f"/v1/dags/{dag.name}").json()["dag_version"],
    }
    return OtherOrg(ids, dag.name, dag.published)


@pytest.fixture(scope="module")
def stranger(shared: Bench) -> Generator[httpx.Client]:
    with new_user(shared, "admin", org_id=new_org(shared)) as client:
        yield client


@pytest.mark.parametrize("label", ADDRESSED)
def test_an_object_of_another_org_is_not_found(
    shared: Bench, other_org: OtherOrg, stranger: httpx.Client, label: str
) -> None:
    method, path = label.split(" ")[0], other_org.path(label)
    if method == "GET":
        assert shared.user.get(path).status_code == 200, label
    before = shared.dump()
    reply = stranger.request(method, path)
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found"), reply.text
    assert shared.dump() == before


@pytest.mark.parametrize("label", LISTS)
def test_a_list_of_an_empty_org_is_empty(stranger: httpx.Client, label: str) -> None:
    reply = stranger.get(label.split(" ")[1])
    assert reply.status_code == 200, reply.text
    known = [item for item in reply.json()["items"] if label != "GET /v1/users"]
    assert known == [] and reply.json()["next"] is None


@pytest.mark.parametrize("label", LISTS)
def test_every_list_is_limited_and_refuses_unknown_parameters(shared: Bench, label: str) -> None:
    path = label.split(" ")[1]
    for name, value in (("limit", "0"), ("limit", "1001"), ("after", "x"), ("colour", "red")):
        reply = shared.user.get(path, params={name: value})
        assert (reply.status_code, reply.json()["errors"][0]["field"]) == (422, name), reply.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/triggers", {"job": "request", "start": 0, "end": 9}),
        ("/v1/backfills", {"job": "work", "start": 0, "end": 9, "chunk": 10}),
        ("/v1/backfills/preview", {"job": "work", "start": 0, "end": 9, "chunk": 10}),
        ("/v1/pauses", {"job": "work"}),
        ("/v1/pauses/resume", {"job": "work"}),
    ],
)
def test_a_body_that_names_a_dag_of_another_org_is_not_found(
    shared: Bench, other_org: OtherOrg, stranger: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    before = shared.dump()
    reply = stranger.post(path, json={"dag": other_org.dag, **body})
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found"), reply.text
    assert shared.dump() == before
