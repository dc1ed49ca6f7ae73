"""Identities of the sink and the scheduler: each opens its own calls and no other."""

import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import jwt
import pytest

from support.lifecycle.lifecycle import Bench
from trace_etl.dispatcher.task_api.endpoints import ENDPOINTS
from trace_etl.dispatcher.user_api.roles import ROLES, SIGNED
from trace_etl.lite.credentials import keys

SINK_CALLS = {"/internal/buffer-fetch", "/internal/buffer-complete", "/internal/tables-to-drop"}
CRON = """
name: {name}
jobs:
  - {{name: tick, source: {{kind: cron, schedule: "0 * * * *"}}, outputs: [ticks]}}
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
"""

SCHEDULER_CALLS = {
    *("GET /v1/schedules", "GET /v1/schedules/{dag}/{job}/last-tick", "POST /v1/triggers")
}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def call_route(http: httpx.Client, label: str, token: str) -> httpx.Response:
    method, path = label.split(" ")
    url = re.sub(r"\{[^}]*\}", str(uuid4()), path)
    return http.request(method, url, headers=bearer(token), json={} if method == "POST" else None)


@pytest.mark.parametrize("service", ["sink", "scheduler"])
def test_a_service_may_call_only_its_own_routes_of_the_user_api(
    shared: Bench, service: str
) -> None:
    token = shared.live.secrets.service_token(service)
    allowed = SCHEDULER_CALLS if service == "scheduler" else set[str]()
    answers = {
        label: call_route(shared.user, label, token).status_code
        for label, role in ROLES.items()
        if role != SIGNED
    }
    assert {label for label, status in answers.items() if status == 403} == (set(answers) - allowed)


@pytest.mark.parametrize("service", ["sink", "scheduler"])
def test_a_service_may_call_only_its_own_endpoints_of_the_internal_api(
    shared: Bench, service: str
) -> None:
    token = shared.live.secrets.service_token(service)
    statuses: dict[str, int] = {}
    for call in ENDPOINTS:
        if call.auth == "none":
            continue
        for headers in (bearer(token), {"X-Trace-Worker-Token": token}):
            reply = shared.http.request(call.method, call.path, headers=headers, content=b"{}")
            statuses[call.path] = max(statuses.get(call.path, 0), reply.status_code)
    opened = {path for path, status in statuses.items() if status not in (401, 403)}
    assert opened == (SINK_CALLS if service == "sink" else set())


def test_no_other_token_opens_the_calls_of_the_sink(shared: Bench) -> None:
    attempt = shared.attempt()
    secrets = shared.live.secrets
    private = max((secrets.directory / "service").glob("*.pem"))
    claims = jwt.decode(secrets.service_token("sink"), options={"verify_signature": False})

    def sign(key: Path = private, **change: Any) -> str:
        header = {"kid": private.stem}
        return jwt.encode({**claims, **change}, key.read_bytes(), "ES256", headers=header)

    (user_key,) = (secrets.directory / "user").glob("*.pem")
    wrong = {
        "none": {},
        "worker": {"X-Trace-Worker-Token": secrets.worker_token},
        "user": bearer(secrets.user_token),
        "task": bearer(attempt.token),
        "scheduler": bearer(secrets.service_token("scheduler")),
        "expired": bearer(sign(exp=1)),
        "audience": bearer(sign(aud="trace.user")),
        "person": bearer(sign(sub="user:sink")),
        "other key": bearer(sign(user_key)),
        "cut": bearer(secrets.service_token("sink")[:-4]),
    }
    for path in SINK_CALLS:
        statuses = {
            name: shared.http.post(path, headers=headers, content=b"{}").status_code
            for name, headers in wrong.items()
        }
        assert statuses == {**dict.fromkeys(wrong, 401), "scheduler": 403}
        assert shared.http.post(path, headers=bearer(sign()), content=b"{}").status_code == 422


def test_the_scheduler_delivers_single_ticks_of_cron_sources_and_nothing_else(
    shared: Bench,
) -> None:
    name = f"cron_{uuid4().hex[:12]}"
    assert shared.user.post("/v1/dags", json={"text": CRON.format(name=name)}).status_code == 200
    headers = bearer(shared.live.secrets.service_token("scheduler"))

    def trigger(job: str, **scope: Any) -> httpx.Response:
        body = {"dag": name, "job": job, **scope}
        return shared.user.post("/v1/triggers", json=body, headers=headers)

    assert trigger("tick", scheduled_time="2026-03-01T12:00:00Z").status_code == 200
    assert trigger("tick", start=0, end=7200).status_code == 409
    refused = trigger("request", start=5, end=5)
    assert refused.status_code == 409 and "not a cron source" in refused.json()["detail"]
    query = {"dag": name, "job": "request"}
    assert shared.user.get("/v1/events", params=query).json()["items"] == []


def test_a_rotation_replaces_the_tokens_and_two_make_the_old_ones_invalid(
    shared: Bench,
) -> None:
    secrets = shared.live.secrets
    tokens = {name: secrets.directory / "services" / name for name in ("scheduler", "sink")}
    old = secrets.service_token("sink")

    def status(token: str) -> int:
        path = "/internal/buffer-fetch"
        return shared.http.post(path, headers=bearer(token), content=b"{}").status_code

    first = keys.rotate_service_key(secrets.directory / "service", tokens)
    assert secrets.service_token("sink") != old
    assert (status(old), status(secrets.service_token("sink"))) == (422, 422)
    second = keys.rotate_service_key(secrets.directory / "service", tokens)
    assert (second.verify, len(second.pruned)) == ([first.signs], 1)
    assert (status(old), status(secrets.service_token("sink"))) == (401, 422)
    public = {path.name for path in (secrets.directory / "service" / "public").iterdir()}
    assert public == {f"{first.signs}.pub.pem", f"{second.signs}.pub.pem"}
