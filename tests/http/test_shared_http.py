"""HTTP features shared by all services: TLS listeners, problem documents, clean stops."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncGenerator
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from httpcore._sync.http11 import HTTP11Connection
from pydantic import BaseModel, ConfigDict

from trace_etl import __version__
from trace_etl.http.app import new_app
from trace_etl.http.clients.thread_safe_transport import ThreadSafeTransport
from trace_etl.http.server.listeners import CannotListen, Listener, Tls, serve
from trace_etl.http.user_tokens import UserDep, UserKeys
from trace_etl.lite.credentials import certificates, keys
from trace_etl.lite.processes.ports import free_port
from trace_etl.model.errors import (
    Conflict,
    Fault,
    Forbidden,
    Invalid,
    LeaseLost,
    NotFound,
    OutputNotReady,
    TraceError,
    Unauthenticated,
    Unavailable,
)


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int


class Odd(TraceError):
    code = "odd"


ERRORS: dict[str, Exception] = {
    "unauthenticated": Unauthenticated("no"),
    "forbidden": Forbidden("no"),
    "not_found": NotFound("no task 7"),
    "conflict": Conflict("no"),
    "output_not_ready": OutputNotReady("no"),
    "lease_lost": LeaseLost("stale_attempt", "attempt 2 runs"),
    "invalid": Invalid([Fault("jobs.0.name", "is used twice", 3, 9), Fault("x", "y")]),
    "unavailable": Unavailable("no database"),
    "odd": Odd("secret path /x"),
    "surprise": RuntimeError("secret path /x"),
}


def make_app(user_keys: Path) -> FastAPI:
    app = new_app("test", max_body=1000)
    app.state.user_keys = UserKeys(user_keys)

    @app.get("/fail/{name}")
    async def fail(name: str) -> None:
        raise ERRORS[name]

    @app.post("/body")
    async def body(body: Body) -> int:
        return body.size

    @app.post("/stream")
    async def stream(request: Request) -> int:
        return sum([len(piece) async for piece in request.stream()])

    @app.get("/body")
    async def get_body() -> None:
        return None

    @app.get("/me")
    async def me(user: UserDep) -> str:
        return user.name

    @app.get("/slow")
    async def slow() -> str:
        app.state.entered.set()
        await app.state.leave.wait()
        return "done"

    app.state.entered = asyncio.Event()
    app.state.leave = asyncio.Event()
    return app


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    (tmp_path / "tls").mkdir()
    certificates.ensure(tmp_path / "tls")
    return Tls(tmp_path / "tls" / "server.pem", tmp_path / "tls" / "server.key")


@pytest.fixture
def user_keys(tmp_path: Path) -> Path:
    directory = tmp_path / "user"
    directory.mkdir()
    keys.ensure_user_token(tmp_path / "user.jwt", keys.ensure_user_key(directory))
    return directory / "public"


@pytest.fixture
async def app(user_keys: Path) -> FastAPI:
    return make_app(user_keys)


@pytest.fixture
async def client(app: FastAPI, tls: Tls) -> AsyncGenerator[httpx.AsyncClient]:
    stop, port = asyncio.Event(), free_port()
    serving = asyncio.create_task(serve([Listener(app, "127.0.0.1", port)], tls=tls, stop=stop))
    trust = ssl.create_default_context(cafile=str(tls.cert.with_name("ca.pem")))
    async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{port}", verify=trust) as client:
        await answering(client)
        yield client
    stop.set()
    await asyncio.wait_for(serving, 8)


async def answering(client: httpx.AsyncClient) -> None:
    for _ in range(200):
        try:
            await client.get("/healthz")
            return
        except httpx.ConnectError:
            await asyncio.sleep(0.02)
    raise AssertionError("the server never answered")


async def test_health_needs_no_token_and_names_the_version(client: httpx.AsyncClient) -> None:
    answer = await client.get("/healthz")
    assert answer.json() == {"status": "ok", "version": __version__}


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("unauthenticated", 401),
        ("forbidden", 403),
        ("not_found", 404),
        ("conflict", 409),
        ("output_not_ready", 409),
        ("lease_lost", 409),
        ("invalid", 422),
        ("unavailable", 503),
    ],
)
async def test_every_error_is_a_problem_document_with_its_code(
    client: httpx.AsyncClient, name: str, status: int
) -> None:
    answer = await client.get(f"/fail/{name}")
    document = answer.json()
    assert answer.status_code == document["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert document["code"] == name
    assert document["type"] == f"urn:trace:problem:{name}"
    assert document["detail"] == str(ERRORS[name])


async def test_a_lost_lease_contains_its_reason(client: httpx.AsyncClient) -> None:
    assert (await client.get("/fail/lease_lost")).json()["reason"] == "stale_attempt"


async def test_invalid_input_lists_every_error_with_its_position(client: httpx.AsyncClient) -> None:
    assert (await client.get("/fail/invalid")).json()["errors"] == [
        {"field": "jobs.0.name", "line": 3, "column": 9, "message": "is used twice"},
        {"field": "x", "line": None, "column": None, "message": "y"},
    ]


async def test_the_headers_tell_the_client_how_to_continue(client: httpx.AsyncClient) -> None:
    assert (await client.get("/fail/unauthenticated")).headers["www-authenticate"]
    assert int((await client.get("/fail/unavailable")).headers["retry-after"]) >= 1


@pytest.mark.parametrize("name", ["odd", "surprise"])
async def test_an_unexpected_error_reveals_no_details(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.get(f"/fail/{name}")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "internal"
    assert "secret" not in answer.text
    # The server closes a connection on which the application raised an error.
    assert (answer.headers.get("connection") == "close") == (name == "surprise")


async def test_a_malformed_body_names_the_field(client: httpx.AsyncClient) -> None:
    answer = await client.post("/body", json={"size": "many", "colour": 1})
    assert answer.status_code == 422
    assert {e["field"] for e in answer.json()["errors"]} == {"size", "colour"}
    missing = await client.post("/body", json={})
    assert missing.json()["errors"][0]["message"] == "is required and missing"


async def test_broken_json_is_reported_as_such(client: httpx.AsyncClient) -> None:
    answer = await client.post(
        "/body", content=b'{"size": ', headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "body"
    assert "not JSON" in answer.json()["detail"]


async def test_a_body_above_the_limit_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/body", json={"size": 1, "colour": "x" * 2000})
    assert answer.status_code == 413
    assert answer.json()["code"] == "too_large"


async def test_a_client_that_disconnects_in_the_middle_of_a_body_causes_no_error(
    app: FastAPI,
) -> None:
    """Otherwise the log of every such request would have a traceback."""
    received = iter(
        [
            {"type": "http.request", "body": b"{", "more_body": True},
            {"type": "http.disconnect"},
        ]
    )
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return next(received)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/stream",
        "headers": [],
        "query_string": b"",
    }
    await app(scope, receive, send)
    assert sent[0]["status"] == 499


async def test_an_unknown_path_or_method_is_a_problem_document(client: httpx.AsyncClient) -> None:
    unknown = await client.get("/nothing")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    wrong = await client.put("/body")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "GET, POST"


async def test_the_openapi_document_is_built_once_and_not_in_the_event_loop(
    app: FastAPI, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, threads = app.openapi, list[int]()

    def build_document() -> dict[str, Any]:
        threads.append(threading.get_ident())
        return build()

    monkeypatch.setattr(app, "openapi", build_document)
    replies = await asyncio.gather(*(client.get("/openapi.json") for _ in range(3)))
    assert {reply.json()["info"]["title"] for reply in replies} == {"test"}
    assert len(threads) == 1 and threads[0] != threading.get_ident()


async def test_a_user_is_identified_by_the_bearer_token(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    token = (tmp_path / "user.jwt").read_text().strip()
    good = await client.get("/me", headers={"authorization": f"Bearer {token}"})
    assert good.json() == "local"
    for header in ("", "Bearer", "Bearer x", f"Basic {token}", token):
        bad = await client.get("/me", headers={"authorization": header})
        assert (bad.status_code, bad.json()["code"]) == (401, "unauthenticated")


async def test_answers_contain_the_current_date(client: httpx.AsyncClient) -> None:
    first = (await client.get("/healthz")).headers["date"]
    async with asyncio.timeout(20):
        while (later := (await client.get("/healthz")).headers["date"]) == first:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    passed = parsedate_to_datetime(later) - parsedate_to_datetime(first)
    assert timedelta() < passed < timedelta(seconds=20)


async def test_plain_http_is_not_answered(client: httpx.AsyncClient) -> None:
    plain = str(client.base_url).replace("https://", "http://")
    async with httpx.AsyncClient() as other:
        with pytest.raises(httpx.RemoteProtocolError):
            await other.get(f"{plain}/healthz")


async def test_a_taken_port_is_reported_before_any_listener_starts(app: FastAPI, tls: Tls) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(CannotListen, match=str(port)):
            await serve([Listener(app, "127.0.0.1", port)], tls=tls, stop=asyncio.Event())


async def test_a_stop_lets_running_requests_finish_on_every_listener(
    app: FastAPI, tls: Tls, user_keys: Path
) -> None:
    stop, first, second = asyncio.Event(), free_port(), free_port()
    listeners = [
        Listener(app, "127.0.0.1", first),
        Listener(make_app(user_keys), "127.0.0.1", second),
    ]
    serving = asyncio.create_task(serve(listeners, tls=tls, stop=stop))
    trust = ssl.create_default_context(cafile=str(tls.cert.with_name("ca.pem")))
    async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{first}", verify=trust) as client:
        await answering(client)
        assert (await client.get(f"https://127.0.0.1:{second}/healthz")).status_code == 200
        slow = asyncio.create_task(client.get("/slow"))
        await app.state.entered.wait()
        stop.set()
        app.state.leave.set()
        assert (await slow).json() == "done"
    await asyncio.wait_for(serving, 8)


async def test_a_request_never_closes_the_connection_of_another_thread(
    app: FastAPI, client: httpx.AsyncClient, tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust = ssl.create_default_context(cafile=str(tls.cert.with_name("ca.pem")))
    transport = ThreadSafeTransport(trust)
    with httpx.Client(base_url=client.base_url, transport=transport, trust_env=False) as shared:
        slow = asyncio.create_task(asyncio.to_thread(shared.get, "/slow"))
        await app.state.entered.wait()
        # As the pool sees a connection that a thread takes between the two steps of this check.
        monkeypatch.setattr(HTTP11Connection, "has_expired", lambda connection: True)
        assert (await asyncio.to_thread(shared.get, "/healthz")).status_code == 200
        app.state.leave.set()
        assert (await slow).json() == "done"
