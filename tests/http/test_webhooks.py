"""`POST /v1/webhooks/{dag}/{job}`: deliveries are verified, limited, recorded once and never lost."""

import hashlib
import hmac
import json
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from support.bundles import make_zip, push
from support.lifecycle.lifecycle import Bench, bench, run_concurrently
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied
from support.users import new_org, new_user

SECRET = "correct horse battery staple"  # a line is one secret, also with spaces
DAG = """
name: {name}
jobs:
  - name: hook
    source: {{kind: webhook, secret: hook_secret{options}}}
    outputs: [ranges]
  - name: split
    operator: range_splitter
    inputs: [{{from: {{job: hook}}}}]
    outputs: [ranges]
    config: {{size: 10}}
"""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("webhook-secrets")
    (directory / "hook_secret").write_text(f"{SECRET}\nthe-one-before\nolder-still\n")
    return directory


@pytest.fixture(scope="module")
def here(
    templates: Templates, secrets: Secrets, keys: Path, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Bench]:
    objects = tmp_path_factory.mktemp("objects")
    with (
        copied(templates) as dsns,
        live(secrets, dsns, objects, secrets_dir=keys) as running,
        bench(running) as own_bench,
    ):
        yield own_bench


@dataclass
class Hook:
    """A sender that delivers to one source."""

    here: Bench
    dag: str
    org: str | None = None

    def send(
        self,
        body: object,
        *,
        delivery: str | None = None,
        secret: str = SECRET,
        at: float | None = None,
        signed_for: str | None = None,
        **headers: str,
    ) -> httpx.Response:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        stamp, delivery = str(int(at or time.time())), delivery or uuid4().hex
        target = f"{self.org or ''}/{signed_for or self.dag}/hook"
        signed = f"{stamp}\n{delivery}\n{target}\n".encode() + raw
        digest = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
        sent = {
            "X-Trace-Timestamp": stamp,
            "X-Trace-Delivery": delivery,
            "X-Trace-Signature": f"v2={digest}",
            "Authorization": "",
            **headers,
        }
        params = {"org": self.org} if self.org else {}
        path = f"/v1/webhooks/{self.dag}/hook"
        return self.here.user.post(path, content=raw, headers=sent, params=params)

    def events(self) -> list[dict[str, Any]]:
        query = (
            "SELECT e.* FROM events e JOIN datasets d USING (dataset_uuid) JOIN jobs j"
            " USING (job_id) JOIN dags g USING (dag_id) WHERE g.name = %s AND j.name = 'hook'"
        )
        return self.here.rows(query, self.dag)


def deploy(user: httpx.Client, options: str = "", name: str | None = None, text: str = DAG) -> str:
    name = name or f"w_{uuid4().hex[:12]}"
    reply = user.post("/v1/dags", json={"text": text.format(name=name, options=options)})
    assert reply.status_code == 200, reply.text
    return name


@pytest.fixture
def hook(here: Bench) -> Hook:
    return Hook(here, deploy(here.user))


def test_a_signed_delivery_becomes_an_event_that_is_routed(here: Bench, hook: Hook) -> None:
    reply = hook.send({"start": 0, "end": 29}, delivery="first")
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    assert (answer["created"], answer["partition_key"]) == (True, "0-29")
    here.live.drain()
    (event,) = hook.events()
    assert str(event["event_id"]) == answer["event_id"] and event["routed_at"] is not None
    query = {"dag": hook.dag, "job": "split"}
    assert len(here.user.get("/v1/tasks", params=query).json()["items"]) == 1


def test_a_repeated_delivery_changes_nothing_and_a_different_body_is_a_conflict(
    hook: Hook,
) -> None:
    first = hook.send({"start": 0, "end": 9}, delivery="d1").json()
    again = hook.send({"start": 0, "end": 9}, delivery="d1").json()
    assert (again["event_id"], again["created"]) == (first["event_id"], False)
    other = hook.send({"start": 10, "end": 19}, delivery="d1")
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    assert len(hook.events()) == 1


def test_concurrent_deliveries_with_one_id_record_one_event(hook: Hook) -> None:
    replies = run_concurrently([lambda: hook.send({"start": 0, "end": 9}, delivery="race")] * 8)
    assert {reply.status_code for reply in replies} == {200}
    assert sum(reply.json()["created"] for reply in replies) == 1
    assert len({reply.json()["event_id"] for reply in replies}) == 1
    assert len(hook.events()) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret": "another"},
        {"secret": "older-still"},
        {"at": 1_000_000_000},
        {"X-Trace-Signature": "v2=" + "0" * 64},
        {"X-Trace-Signature": ""},
        {"X-Trace-Signature": "v2=x"},
        {"X-Trace-Signature": "v1=" + "0" * 64},
        {"signed_for": "another_dag"},
        {"X-Trace-Timestamp": "x"},
        {"X-Trace-Timestamp": "1"},
        {"X-Trace-Delivery": "not-what-was-signed"},
    ],
    ids=str,
)
def test_a_delivery_without_a_recent_valid_signature_is_refused(
    hook: Hook, wrong: dict[str, Any]
) -> None:
    reply = hook.send({"start": 0, "end": 9}, **wrong)
    assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated"), reply.text
    assert hook.events() == []


def test_a_body_changed_after_signing_is_refused(hook: Hook) -> None:
    good = hook.send({"start": 0, "end": 9}, delivery="d")
    sent = good.request
    forged = hook.here.user.post(
        str(sent.url), content=sent.content.replace(b"9", b"8"), headers=dict(sent.headers)
    )
    assert forged.status_code == 401


def test_the_previous_secret_is_accepted_during_a_rotation(hook: Hook) -> None:
    assert hook.send({"start": 0, "end": 9}, secret="the-one-before").status_code == 200


def test_a_rotated_secret_applies_immediately(here: Bench, hook: Hook, keys: Path) -> None:
    file = keys / "hook_secret"
    before = file.read_text()
    file.write_text("brand-new\n")
    try:
        assert hook.send({"start": 0, "end": 9}).status_code == 401
        assert hook.send({"start": 0, "end": 9}, secret="brand-new").status_code == 200
    finally:
        file.write_text(before)


@pytest.mark.parametrize("size", [10, 200, 100_000, 1_000_000, 1_100_000])
def test_the_answer_to_an_unsigned_delivery_does_not_depend_on_the_source(
    here: Bench, size: int
) -> None:
    small = Hook(here, deploy(here.user, ", max_bytes: 100"))
    unconfigured = Hook(here, deploy(here.user))
    text = DAG.format(name=unconfigured.dag, options="").replace("hook_secret", "not_there")
    (warning,) = here.user.post("/v1/plans", json={"text": text}).json()["warnings"]
    assert "the secret 'not_there' is missing or empty" in warning
    assert here.user.post("/v1/dags", json={"text": text}).status_code == 200
    body = {"start": 0, "end": 9, "x": "y" * size}
    replies = [
        hook.send(body, secret="wrong") for hook in (Hook(here, "no_dag"), small, unconfigured)
    ]
    assert {r.status_code for r in replies} == {401 if size < 1024 * 1024 else 413}
    assert len({r.text for r in replies}) == 1


def test_a_delivery_above_the_limit_of_its_source_is_refused(here: Bench) -> None:
    small = Hook(here, deploy(here.user, ", max_bytes: 100"))
    assert small.send({"start": 0, "end": 9}).status_code == 200
    large = small.send({"start": 0, "end": 9, "x": "y" * 100})
    assert (large.status_code, large.json()["code"]) == (413, "too_large")
    usual = Hook(here, deploy(here.user))
    assert usual.send({"start": 0, "end": 9, "x": "y" * 65_536}).status_code == 413


def test_a_body_without_a_range_is_a_delivery_of_its_own_with_its_payload(hook: Hook) -> None:
    for delivery, body in (("one", {"severity": "high"}), ("two", [1, 2])):
        reply = hook.send(body, delivery=delivery)
        assert (reply.status_code, reply.json()["partition_key"]) == (200, f"delivery-{delivery}")
    found = hook.here.rows(
        "SELECT e.partition_key, e.parameters FROM events e WHERE e.event_id = %s",
        hook.send([1, 2], delivery="two").json()["event_id"],
    )
    assert found == [{"partition_key": "delivery-two", "parameters": {"payload": [1, 2]}}]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "body"),
        (b"", "body"),
        (b'{"a": "\\u0000"}', "body"),
        (b'{"a": NaN}', "body"),
        (b"[" * 65 + b"1" + b"]" * 65, "body"),
        ({"start": 1}, "end"),
        ({"start": 5, "end": 4}, "end"),
        ({"start": -1, "end": 4}, "start"),
        ({"start": True, "end": 4}, "start"),
        ({"start": 1.5, "end": 4}, "start"),
        ({"start": "0xzz", "end": 4}, "start"),
        ({"start": 0, "end": 10**30}, "end"),
    ],
    ids=str,
)
def test_a_body_without_a_scope_is_refused_with_the_field(
    hook: Hook, body: object, field: str
) -> None:
    reply = hook.send(body, delivery="bad")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid"), reply.text
    assert reply.json()["errors"][0]["field"] == field
    assert hook.events() == []
    assert (
        hook.send({"start": 0, "end": 9}, delivery="bad").status_code == 200
    )  # a refused delivery does not use up its id


def test_the_scope_is_read_from_the_configured_field(here: Bench) -> None:
    nested = Hook(here, deploy(here.user, ", scope: {start: block.from, end: block.to}"))
    reply = nested.send({"block": {"from": "0x10", "to": "31"}})
    assert reply.json()["partition_key"] == "16-31"
    moving = Hook(here, deploy(here.user, ", scope: {cursor: height}"))
    assert moving.send({"height": 77}).json()["cursor"] == 77
    assert moving.events()[0]["cursor_value"] == 77


def test_deliveries_to_a_paused_source_are_routed_when_it_resumes(here: Bench, hook: Hook) -> None:
    here.rows(
        "UPDATE jobs SET paused_at = now(), paused_by = 'ada', bulk_paused_at = now(),"
        " bulk_paused_by = 'ada' FROM dags g WHERE g.dag_id = jobs.dag_id AND g.name = %s"
        " AND jobs.name = 'hook'",
        hook.dag,
    )
    reply = hook.send({"start": 0, "end": 9})
    assert reply.status_code == 200 and reply.json()["deferred_by"] is not None
    here.live.drain()
    (event,) = hook.events()
    assert event["routed_at"] is None
    deferred = here.rows("SELECT * FROM deferred_events WHERE event_id = %s", event["event_id"])
    assert len(deferred) == 1


def test_a_delivery_to_a_source_with_a_function_is_a_task(here: Bench) -> None:
    pushed = push(here, "receive", make_zip(f"# {uuid4()}")).json()["sha256"]
    function = f"udf: {{{{bundle: receive, sha256: {pushed}, handler: rule.handler}}}}"
    source = f"operator: udf_source\n    {function}\n    outputs"
    text = DAG.replace("outputs", source, 1)
    hook = Hook(here, deploy(here.user, text=text))
    reply = hook.send({"order": 1}, delivery="first")
    assert reply.status_code == 200 and reply.json()["created"] and reply.json()["event_id"] is None
    again = hook.send({"order": 1}, delivery="first").json()
    assert (again["task_id"], again["created"]) == (reply.json()["task_id"], False)
    assert hook.send({"order": 2}, delivery="first").status_code == 409
    task = here.claimed(reply.json()["task_id"]).claimed["task"]
    assert task["parameters"] == {"payload": {"order": 1}}
    assert task["scope"]["partition_key"] == "delivery-first" and hook.events() == []


def test_a_webhook_of_another_org_has_its_own_secrets(here: Bench, keys: Path) -> None:
    org = new_org(here)
    with new_user(here, "admin", org_id=org) as stranger:
        dag = deploy(stranger)
    body = {"start": 0, "end": 9}
    assert Hook(here, dag).send(body).status_code == 401
    assert Hook(here, dag, org=org).send(body).status_code == 401  # not the local org's secret
    directory = keys / "orgs" / org
    directory.mkdir(parents=True)
    (directory / "hook_secret").write_text("of-this-org\n")
    for name in (org, f"org-{org}"):
        assert Hook(here, dag, org=name).send(body, secret="of-this-org").status_code == 200
        assert Hook(here, dag, org=name).send(body).status_code == 401


def test_a_webhook_source_cannot_be_triggered_manually(hook: Hook) -> None:
    body = {"dag": hook.dag, "job": "hook", "start": 0, "end": 9}
    assert hook.here.user.post("/v1/triggers", json=body).status_code == 409
