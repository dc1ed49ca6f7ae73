"""Permissions of every role on every route."""

import re
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from support.lifecycle.lifecycle import Bench
from support.users import new_org, new_user
from trace_etl.dispatcher.user_api.roles import ROLES, SIGNED, labels
from trace_etl.dispatcher.user_api.routers import ROUTERS
from trace_etl.lite.credentials import keys

RANK = ["reader", "writer", "admin"]
CALLS = [label for label, needed in ROLES.items() if needed != SIGNED]


@pytest.fixture(scope="module")
def users(shared: Bench) -> Generator[dict[str, httpx.Client]]:
    clients = {role: new_user(shared, role) for role in RANK}
    yield clients
    for client in clients.values():
        client.close()


def call(client: httpx.Client, label: str) -> httpx.Response:
    """Send a call that passes the role check and then only reads or is refused as invalid."""
    method, path = label.split(" ")
    path = re.sub(r"\{\w+\}", lambda _: str(uuid4()), path)
    if path == "/v1/changes":
        path += "?kind=nonsense"
    return client.request(method, path, json={"nobody_knows": True} if method == "POST" else None)


def test_every_route_has_one_line_in_the_permission_table() -> None:
    assert sorted(ROLES) == sorted(label for router in ROUTERS for label in labels(router))


@pytest.mark.parametrize("role", RANK)
@pytest.mark.parametrize("label", CALLS)
def test_a_role_may_call_exactly_its_permitted_routes(
    users: dict[str, httpx.Client], label: str, role: str
) -> None:
    reply = call(users[role], label)
    may = RANK.index(role) >= RANK.index(ROLES[label])
    assert (reply.status_code == 403) is not may, reply.text
    if not may:
        assert reply.json()["code"] == "forbidden"
        assert ROLES[label] in reply.json()["detail"]


def test_the_role_comes_from_the_database_and_not_from_the_token(shared: Bench) -> None:
    with new_user(shared, "reader") as reader:
        me = reader.get("/v1/me").json()
        assert me["role"] == "reader"
        shared.user.post(f"/v1/users/{me['name']}/role", json={"role": "writer"})
        assert reader.get("/v1/me").json()["role"] == "writer"


def test_an_unknown_user_with_a_valid_token_is_refused(shared: Bench) -> None:
    token = keys.sign_user_token(_key(shared), "unknown", now=datetime.now(UTC))
    reply = shared.user.get("/v1/dags", headers={"Authorization": f"Bearer {token}"})
    assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")


def test_a_disabled_user_is_refused_immediately_and_can_be_enabled_again(shared: Bench) -> None:
    with new_user(shared, "writer") as writer:
        name = writer.get("/v1/me").json()["name"]
        assert shared.user.post(f"/v1/users/{name}/disable").json()["disabled_at"] is not None
        assert writer.get("/v1/dags").status_code == 403
        assert shared.user.post(f"/v1/users/{name}/enable").json()["disabled_at"] is None
        assert writer.get("/v1/dags").status_code == 200


def test_an_expired_token_is_not_accepted(shared: Bench) -> None:
    past = datetime.now(UTC) - timedelta(days=2)
    token = keys.sign_user_token(_key(shared), "local", now=past, life=timedelta(days=1))
    reply = shared.user.get("/v1/dags", headers={"Authorization": f"Bearer {token}"})
    assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated")


def test_the_last_admin_can_neither_be_disabled_nor_demoted(shared: Bench) -> None:
    org = new_org(shared)
    with new_user(shared, "admin", org_id=org) as only:
        name = only.get("/v1/me").json()["name"]
        assert only.post(f"/v1/users/{name}/disable").status_code == 409
        assert only.post(f"/v1/users/{name}/role", json={"role": "reader"}).status_code == 409
        with new_user(shared, "admin", org_id=org):
            assert only.post(f"/v1/users/{name}/role", json={"role": "reader"}).status_code == 200
            assert only.get("/v1/users").status_code == 403


def test_users_are_listed_page_by_page_and_by_role(shared: Bench) -> None:
    org = new_org(shared)
    with new_user(shared, "admin", org_id=org) as admin:
        for n in range(5):
            body = {"name": f"r{n}", "role": "reader"}
            assert admin.post("/v1/users", json=body).status_code == 200
        assert admin.post("/v1/users", json=body).status_code == 409
        names, after = [], None
        while True:
            params = {"limit": 2, "role": "reader"} | ({"after": after} if after else {})
            page = admin.get("/v1/users", params=params).json()
            names += [item["name"] for item in page["items"]]
            after = page["next"]
            if after is None:
                break
        assert names == [f"r{n}" for n in range(5)]


def test_users_of_another_org_cannot_be_seen_or_changed(shared: Bench) -> None:
    with new_user(shared, "admin", org_id=new_org(shared)) as other:
        assert "local" not in [u["name"] for u in other.get("/v1/users").json()["items"]]
        assert other.post("/v1/users/local/disable").status_code == 404
        assert shared.user.get("/v1/me").status_code == 200


def _key(shared: Bench) -> Path:
    return keys.ensure_user_key(shared.live.secrets.directory / "user")
