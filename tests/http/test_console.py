"""The console: login, sessions, refused origins, and calls in the name of the session's user."""

import re
from collections.abc import Generator

import httpx
import pytest
from pydantic import ValidationError

from support.lifecycle.lifecycle import Bench
from support.services.console import Browser, RunningConsole, running_console
from support.users import new_user
from trace_etl.console.guard import POLICY
from trace_etl.console.sessions import Sessions
from trace_etl.console.settings import ConsoleSettings


@pytest.fixture(scope="module")
def console(shared: Bench) -> Generator[RunningConsole]:
    with running_console(shared.live) as running:
        yield running


@pytest.fixture
def page(console: RunningConsole, shared: Bench) -> Generator[Browser]:
    with console.browse(shared.live.secrets.user_token) as browser:
        yield browser


def get_link(console: RunningConsole, token: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.post(f"{console.url}/links", headers=headers, trust_env=False)


# --- login ----------------------------------------------------------------------------------------


def test_a_link_opens_one_session_once(console: RunningConsole, shared: Bench) -> None:
    path = get_link(console, shared.live.secrets.user_token).json()["path"]
    code = path.removeprefix("/login#")
    with console.browse() as browser:
        reply = browser.log_in(code=code)
        assert (reply.status_code, reply.json()["name"]) == (200, "local")
        assert browser.http.get("/session").json()["csrf"] == reply.json()["csrf"]
    with console.browse() as second:
        again = second.log_in(code=code)
        assert again.status_code == 401
        assert "trace console" in again.json()["detail"]


def test_a_link_needs_a_valid_token(console: RunningConsole) -> None:
    assert get_link(console, "nonsense").status_code == 401


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(
    console: RunningConsole, shared: Bench
) -> None:
    with console.browse() as browser:
        cookie = browser.log_in(token=shared.live.secrets.user_token).headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/" in cookie
    assert cookie.startswith(f"trace-session-{console.cfg.console_port}=")
    assert "Secure" not in cookie  # plain HTTP on the loopback address
    assert shared.live.secrets.user_token not in cookie


def test_behind_https_the_cookie_is_bound_to_the_host(shared: Bench) -> None:
    with running_console(shared.live, console_origins=("https://trace.example",)) as console:
        headers = {"host": "trace.example", "origin": "https://trace.example"}
        body = {"token": shared.live.secrets.user_token}
        reply = httpx.post(f"{console.url}/session", json=body, headers=headers, trust_env=False)
        assert reply.status_code == 200, reply.text
        assert reply.headers["set-cookie"].startswith("__Host-trace-session=")
        assert "Secure" in reply.headers["set-cookie"]
        assert httpx.get(f"{console.url}/", trust_env=False).status_code == 403  # not its origin


def test_logging_out_ends_the_session(page: Browser) -> None:
    cookies = dict(page.http.cookies)
    reply = page.http.delete("/session", headers={"origin": page.origin, "x-trace-csrf": page.csrf})
    assert reply.status_code == 204
    again = page.http.get(
        "/session", headers={"cookie": "; ".join(f"{k}={v}" for k, v in cookies.items())}
    )
    assert again.status_code == 204


def test_a_login_replaces_the_session_of_the_browser(page: Browser, shared: Bench) -> None:
    before = "; ".join(f"{name}={value}" for name, value in page.http.cookies.items())
    assert page.log_in(token=shared.live.secrets.user_token).status_code == 200
    assert page.http.get("/session").status_code == 200
    page.http.cookies.clear()
    assert page.http.get("/session", headers={"cookie": before}).status_code == 204


def test_sessions_and_links_expire() -> None:
    now = [0.0]
    sessions = Sessions(100, 10, clock=lambda: now[0])
    late, code = sessions.create_link("t"), sessions.create_link("t")
    now[0] = 9
    assert sessions.redeem(code) == "t"
    now[0] = 11
    assert sessions.redeem(late) is None
    key, _ = sessions.open("t")
    now[0] = 110
    assert sessions.find(key) is not None
    now[0] = 112
    assert sessions.find(key) is None


def test_only_tls_or_loopback_is_served() -> None:
    urls = {"api_url": "https://a", "query_url": "https://b", "console_port": 1}
    with pytest.raises(ValidationError, match="TRACE_CONSOLE_TLS_CERT"):
        ConsoleSettings(**urls, console_host="0.0.0.0")


# --- origins and CSRF -----------------------------------------------------------------------------

_FOREIGN = [
    ({"origin": "http://evil.example"}, "another origin"),
    ({"origin": ""}, "no origin"),
    ({"origin": "null"}, "an opaque origin"),
    ({"x-trace-csrf": ""}, "no CSRF token"),
    ({"x-trace-csrf": "guess"}, "a wrong CSRF token"),
    ({"sec-fetch-site": "cross-site"}, "another site"),
    ({"sec-fetch-site": "same-site"}, "another port of this host"),
    ({"host": "evil.example"}, "another host"),
]


@pytest.mark.parametrize("headers", [h for h, _ in _FOREIGN], ids=[name for _, name in _FOREIGN])
def test_a_forged_request_changes_nothing(
    page: Browser, shared: Bench, headers: dict[str, str]
) -> None:
    dag = shared.dag()
    body = {"dag": dag.name, "job": "work"}
    reply = page.post("/api/v1/pauses", body, **headers)
    assert reply.status_code == 403, reply.text
    assert not shared.user.get("/v1/pauses", params={"dag": dag.name}).json()["items"]


def test_every_route_that_changes_something_needs_the_csrf_token(page: Browser) -> None:
    for method in ("POST", "PUT", "DELETE"):
        headers = {"origin": page.origin}
        reply = page.http.request(method, "/api/v1/tasks/retry", headers=headers)
        assert reply.json()["code"] == "csrf_mismatch"
    assert page.http.delete("/session", headers={"origin": page.origin}).status_code == 403


def test_a_page_of_another_origin_cannot_log_in(console: RunningConsole, shared: Bench) -> None:
    body = {"token": shared.live.secrets.user_token}
    headers = {"origin": "http://127.0.0.1:1"}
    reply = httpx.post(f"{console.url}/session", json=body, headers=headers, trust_env=False)
    assert reply.status_code == 403


# --- calls of the page ----------------------------------------------------------------------------


def test_calls_act_with_the_role_of_the_user(console: RunningConsole, shared: Bench) -> None:
    dag = shared.dag()
    with new_user(shared, "reader") as reader:
        token = reader.headers["authorization"].removeprefix("Bearer ")
    with console.browse(token) as browser:
        assert browser.http.get("/session").json()["role"] == "reader"
        assert browser.http.get(f"/api/v1/dags/{dag.name}").json()["dag"] == dag.name
        refused = browser.post("/api/v1/pauses", {"dag": dag.name, "job": "work"})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


def test_a_writer_can_pause_a_job(page: Browser, shared: Bench) -> None:
    dag = shared.dag()
    assert page.post("/api/v1/pauses", {"dag": dag.name, "job": "work"}).status_code == 200
    assert page.http.get("/api/v1/pauses", params={"dag": dag.name}).json()["items"]


def test_the_console_forwards_no_calls_but_those_of_the_user_api(page: Browser) -> None:
    for path in ("/api/metrics", "/api/openapi.json", "/api/healthz", "/api/"):
        assert page.http.get(path).status_code == 404


def test_changes_are_streamed(page: Browser) -> None:
    with page.http.stream("GET", "/api/v1/changes") as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert "event: ready" in next(reply.iter_text())


def test_without_a_session_nothing_is_forwarded(console: RunningConsole) -> None:
    with console.browse() as browser:
        reply = browser.http.get("/api/v1/me")
    assert reply.status_code == 401
    assert "trace console" in reply.json()["detail"]


def test_an_unreachable_service_is_an_error_that_names_it(shared: Bench) -> None:
    with (
        running_console(shared.live, "https://127.0.0.1:1") as console,
        console.browse(shared.live.secrets.user_token) as page,
    ):
        reply = page.post("/api/v1/query", {"sql": "SELECT 1"})
    assert (reply.status_code, reply.json()["code"]) == (503, "unavailable")
    assert "the Query Service at https://127.0.0.1:1 does not answer" in reply.json()["detail"]


# --- files ----------------------------------------------------------------------------------------


def test_every_response_has_the_strict_policy(console: RunningConsole) -> None:
    with console.browse() as browser:
        for path in (
            "/",
            "/login",
            "/dags/x/y",
            "/session",
            "/api/v1/me",
            "/static/x/y.js",
            "/nothing",
        ):
            headers = browser.http.get(path).headers
            assert headers["content-security-policy"] == POLICY, path
            assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in POLICY
    assert "unsafe" not in POLICY and "http" not in POLICY


def test_the_page_and_its_files_are_served(console: RunningConsole) -> None:
    with console.browse() as browser:
        text = browser.http.get("/tasks/123").text
        names = re.findall(r'(?:src|href)="(/static/[^"]+)"', text)
        assert names
        for name in names:
            reply = browser.http.get(name)
            assert reply.status_code == 200, name
            assert "immutable" in reply.headers["cache-control"]
        assert browser.http.get("/static/x/..%2f..%2fapp.py").status_code == 404
