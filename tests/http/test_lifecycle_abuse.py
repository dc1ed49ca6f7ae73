"""Invalid calls to the internal listener: each gets its documented answer and changes nothing."""

import base64
import json
import socket
import ssl
import time
from collections.abc import Callable, Generator
from typing import Any
from uuid import uuid4

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from support.lifecycle.lifecycle import Attempt, Bench
from trace_etl.dispatcher.task_api.endpoints import ENDPOINTS

TASK_SCOPED = [c.path for c in ENDPOINTS if c.auth == "task"]
TASK_PATHS = [p for c in ENDPOINTS if c.auth == "task" for p in (c.path, *c.aliases)]
WORKER_CALLS = [(c.method, c.path) for c in ENDPOINTS if c.auth == "worker"]
MAX_BODY = 1024 * 1024


@pytest.fixture(scope="module")
def attempt(shared: Bench) -> Attempt:
    """A running attempt that no call in this file may change."""
    return shared.attempt("timeout: 24h\nheartbeat_timeout: 24h")


@pytest.fixture
def unchanged(shared: Bench, attempt: Attempt) -> Generator[None]:
    before = shared.dump()
    yield
    assert shared.dump() == before
    assert shared.status(attempt.task_id) == "Running"


def bodies(attempt: Attempt) -> dict[str, dict[str, Any]]:
    """Return a call of each kind that would be accepted with the right token."""
    target = {"dataset_uuid": attempt.output["dataset_uuid"], "batch_uri": "s3://b/x"}
    calls = {
        "/v1/task/heartbeat": {},
        "/v1/task/complete": {"status": "Completed", "events": [attempt.event()]},
        "/v1/task/events": {"events": [attempt.event()]},
        "/v1/task/buffer-publish": target,
        "/v1/task/credentials": {},
        "/v1/task/logs": {"position": 0, "text": "started\n"},
    }
    for call in ENDPOINTS:
        for alias in call.aliases:
            calls[alias] = calls[call.path]
    return {path: {**attempt.fence, **body} for path, body in calls.items()}


def refused(reply: Any, status: int, code: str) -> None:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json()
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["type"] == f"urn:trace:problem:{code}"


# --- tokens -----------------------------------------------------------------------------------


def forged(bench: Bench, attempt: Attempt, /, *, headers: dict | None = None, **claims: Any) -> str:
    """Return the attempt's token with changed claims, signed with the Dispatcher's key."""
    (path,) = bench.live.cfg.task_keys_dir.glob("*.pem")
    all_claims = {**read(attempt.token), **claims}
    signed_claims = {name: value for name, value in all_claims.items() if value is not ...}
    return jwt.encode(
        signed_claims,
        path.read_bytes(),
        algorithm="ES256",
        headers={"kid": path.stem, **(headers or {})},
    )


def read(token: str) -> dict[str, Any]:
    return jwt.decode(token, options={"verify_signature": False})


def public_pem(bench: Bench) -> bytes:
    (path,) = bench.live.cfg.task_keys_dir.glob("*.pem")
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def part(value: dict | bytes) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def hs256_with_the_public_key(bench: Bench, attempt: Attempt) -> str:
    """Sign by hand, because JWT libraries refuse this combination."""
    import hashlib
    import hmac

    kid = jwt.get_unverified_header(attempt.token)["kid"]
    message = f"{part({'alg': 'HS256', 'typ': 'JWT', 'kid': kid})}.{part(read(attempt.token))}"
    digest = hmac.new(public_pem(bench), message.encode(), hashlib.sha256).digest()
    return f"{message}.{part(digest)}"


def alg_none(bench: Bench, attempt: Attempt) -> str:
    kid = jwt.get_unverified_header(attempt.token)["kid"]
    return f"{part({'alg': 'none', 'typ': 'JWT', 'kid': kid})}.{part(read(attempt.token))}."


def stripped_signature(bench: Bench, attempt: Attempt) -> str:
    return attempt.token.rpartition(".")[0] + "."


def changed_claims(bench: Bench, attempt: Attempt) -> str:
    head, _, signature = attempt.token.split(".")
    return f"{head}.{part({**read(attempt.token), 'attempt': 2})}.{signature}"


def foreign_key(bench: Bench, attempt: Attempt) -> str:
    kid = jwt.get_unverified_header(attempt.token)["kid"]
    key = ec.generate_private_key(ec.SECP256R1())
    return jwt.encode(read(attempt.token), key, algorithm="ES256", headers={"kid": kid})


def other_curve(bench: Bench, attempt: Attempt) -> str:
    kid = jwt.get_unverified_header(attempt.token)["kid"]
    key = ec.generate_private_key(ec.SECP384R1())
    return jwt.encode(read(attempt.token), key, algorithm="ES384", headers={"kid": kid})


def without(name: str) -> Callable[[Bench, Attempt], str]:
    return lambda bench, attempt: forged(bench, attempt, **{name: ...})


def with_claims(**claims: Any) -> Callable[[Bench, Attempt], str]:
    return lambda bench, attempt: forged(bench, attempt, **claims)


def with_header(**headers: Any) -> Callable[[Bench, Attempt], str]:
    return lambda bench, attempt: forged(bench, attempt, headers=headers)


def fixed_token(token: str) -> Callable[[Bench, Attempt], str]:
    return lambda bench, attempt: token


CLAIMS = [
    "iss",
    "aud",
    "sub",
    "iat",
    "exp",
    "jti",
    "org_id",
    "task_id",
    "attempt",
    "datasets",
    "s3",
]
BAD_TOKENS: dict[str, Callable[[Bench, Attempt], str]] = {
    "none": fixed_token(""),
    "garbage": fixed_token("garbage"),
    "dots": fixed_token("a.b.c"),
    "empty parts": fixed_token(".."),
    "no token of ours": fixed_token("Bearer x"),
    "json": fixed_token('{"alg":"none"}'),
    "very long": fixed_token("x" * 20_000),
    "latin": fixed_token("caf\xe9.caf\xe9.caf\xe9"),
    "alg none": alg_none,
    "HS256 with the public key": hs256_with_the_public_key,
    "no signature": stripped_signature,
    "changed claims": changed_claims,
    "another key under our kid": foreign_key,
    "another curve": other_curve,
    "unknown kid": with_header(kid="task-20000101T000000000000"),
    "kid that is a path": with_header(kid="../../tls/server"),
    "kid that is empty": with_header(kid=""),
    "expired": with_claims(iat=int(time.time()) - 7200, exp=int(time.time()) - 3600),
    "expired just now": with_claims(exp=int(time.time()) - 1),
    "not yet": with_claims(nbf=int(time.time()) + 3600),
    "wrong aud": with_claims(aud="trace.user"),
    "many auds": with_claims(aud=["trace.task", "trace.user"]),
    "wrong iss": with_claims(iss="another issuer"),
    "another subject": with_claims(sub=f"task:{uuid4()}"),
    "subject of a user": with_claims(sub="user:local"),
    "attempt as text": with_claims(attempt="1"),
    "attempt as truth": with_claims(attempt=True),
    "attempt as fraction": with_claims(attempt=1.0),
    "datasets as text": with_claims(datasets="all"),
    "datasets of nothing": with_claims(datasets=[{}]),
    "datasets as numbers": with_claims(datasets=[1, 2]),
    "prefixes missing": with_claims(s3={}),
    "prefixes as text": with_claims(s3={"read_prefixes": "s3://", "write_prefixes": "s3://"}),
    "org that is no uuid": with_claims(org_id="local"),
    "exp as text": with_claims(exp="tomorrow"),
    **{f"without {name}": without(name) for name in (*CLAIMS, "datasets", "s3")},
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("kind", BAD_TOKENS)
def test_a_bad_capability_token_is_refused_everywhere(
    shared: Bench, attempt: Attempt, kind: str
) -> None:
    token = BAD_TOKENS[kind](shared, attempt)
    for path, body in bodies(attempt).items():
        headers = {"X-Trace-Task-Capability": token.encode("latin-1")}
        reply = shared.http.post(path, json=body, headers=headers)
        refused(reply, 401, "unauthenticated")
        assert reply.headers["www-authenticate"]
        assert len(token) < 5 or token not in reply.text


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("path", TASK_PATHS)
def test_a_call_without_the_header_is_refused(shared: Bench, attempt: Attempt, path: str) -> None:
    body = bodies(attempt)[path]
    refused(shared.http.post(path, json=body), 401, "unauthenticated")
    worker = shared.http.post(path, json=body, headers=shared.worker_headers)
    refused(worker, 401, "unauthenticated")
    bearer = {"Authorization": f"Bearer {attempt.token}"}
    refused(shared.http.post(path, json=body, headers=bearer), 401, "unauthenticated")


@pytest.mark.parametrize("path", TASK_PATHS)
def test_the_token_of_another_task_or_attempt_is_forbidden(
    shared: Bench, attempt: Attempt, path: str
) -> None:
    other = shared.attempt()
    before = shared.dump()
    body = bodies(attempt)[path]
    for token in (other.token, forged(shared, attempt, attempt=2)):
        headers = {"X-Trace-Task-Capability": token}
        refused(shared.http.post(path, json=body, headers=headers), 403, "forbidden")
    assert shared.dump() == before


def test_the_token_of_an_ended_attempt_is_refused_for_the_next_attempt(shared: Bench) -> None:
    first = shared.attempt()
    shared.complete(first, "Failed")
    second = shared.next_attempt(first)
    before = shared.dump()
    for path, body in bodies(second).items():
        headers = {"X-Trace-Task-Capability": first.token}
        refused(shared.http.post(path, json=body, headers=headers), 403, "forbidden")
    assert shared.dump() == before


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("method", "path"), WORKER_CALLS)
def test_a_bad_worker_token_is_refused(
    shared: Bench, attempt: Attempt, method: str, path: str
) -> None:
    good = shared.live.secrets.worker_token
    for token in ("", "x", good[:-1], good + "x", good.swapcase(), f"{good}\t{good}", "é", "\x01"):
        headers = {"X-Trace-Worker-Token": token.encode("latin-1")}
        body = {"task_id": attempt.task_id, "worker_id": "w1"}
        params = {"task_id": attempt.task_id}
        reply = shared.http.request(method, path, json=body, params=params, headers=headers)
        if reply.headers.get("content-type", "").startswith("text/plain"):
            assert reply.status_code == 400  # invalid HTTP: refused before it becomes a request
            continue
        refused(reply, 401, "unauthenticated")
        assert good not in reply.text


# --- headers and requests ---------------------------------------------------------------------


@pytest.mark.usefixtures("unchanged")
def test_a_credential_sent_twice_is_refused(shared: Bench, attempt: Attempt) -> None:
    for second in (attempt.token, "garbage"):
        for pair in ([attempt.token, second], [second, attempt.token]):
            headers = [("X-Trace-Task-Capability", token) for token in pair]
            body = bodies(attempt)["/v1/task/heartbeat"]
            reply = shared.http.post("/v1/task/heartbeat", json=body, headers=headers)
            refused(reply, 401, "unauthenticated")
    worker = shared.live.secrets.worker_token
    headers = [("X-Trace-Worker-Token", worker), ("X-Trace-Worker-Token", "guess")]
    body = {"task_id": attempt.task_id, "worker_id": "w1"}
    refused(
        shared.http.post("/internal/task-claim", json=body, headers=headers), 401, "unauthenticated"
    )


@pytest.mark.usefixtures("unchanged")
def test_unknown_paths_and_methods_are_refused(shared: Bench, attempt: Attempt) -> None:
    headers = {"X-Trace-Task-Capability": attempt.token, **shared.worker_headers}
    for path in ("/", "/v1/task/complete/", "/v1//task/complete", "/internal", "/v1/tasks"):
        refused(shared.http.post(path, json={}, headers=headers), 404, "not_found")
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
        reply = shared.http.request(method, "/v1/task/complete", headers=headers)
        refused(reply, 405, "method_not_allowed")
        assert reply.headers["allow"] == "POST"


# --- bodies -----------------------------------------------------------------------------------


def send(shared: Bench, attempt: Attempt, path: str, content: bytes) -> Any:
    headers = {
        "X-Trace-Task-Capability": attempt.token,
        "Content-Type": "application/json",
        **shared.worker_headers,
    }
    return shared.http.post(path, content=content, headers=headers)


def deep(opening: bytes, closing: bytes, levels: int = 100_000) -> bytes:
    return opening * levels + b"1" + closing * levels


BAD_BODIES = {
    "nothing": b"",
    "blank": b"   ",
    "null": b"null",
    "a list": b"[]",
    "text": b'"x"',
    "a number": b"1",
    "cut off": b'{"task_id": "',
    "two documents": b"{} {}",
    "not JSON": b"task_id=1&attempt=1",
    "invalid UTF-8": b'{"task_id": "\xff\xfe"}',
    "a lone surrogate": b'{"task_id": "\\ud800"}',
    "a NUL": b'{"task_id": "\\u0000", "worker_id": "\\u0000"}',
    "a raw NUL": b'{"task_id": "\x00"}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "deep lists": deep(b"[", b"]"),
    "deep objects": deep(b'{"a":', b"}"),
    "deep inside a field": b'{"events": ' + deep(b"[", b"]", 50_000) + b"}",
    "a huge integer": b'{"attempt": 1' + b"0" * 10_000 + b"}",
    "a huge exponent": b'{"attempt": 1e999999}',
    "not a number": b'{"attempt": NaN}',
    "many fields": json.dumps({f"f{n}": n for n in range(20_000)}).encode(),
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("kind", BAD_BODIES)
def test_a_bad_body_is_refused_everywhere(shared: Bench, attempt: Attempt, kind: str) -> None:
    for path in [
        *TASK_SCOPED,
        "/internal/task-claim",
        "/internal/task-claim-many",
        "/internal/task-complete-many",
    ]:
        reply = send(shared, attempt, path, BAD_BODIES[kind])
        refused(reply, 422, "invalid")
        assert reply.json()["errors"]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("path", TASK_SCOPED)
def test_a_wrong_type_in_any_field_is_refused_with_the_field(
    shared: Bench, attempt: Attempt, path: str
) -> None:
    body = bodies(attempt)[path]
    for field in body:
        for wrong in ([], {}, True, -1, "\x00", 10**400, None, [[]], {"a": {}}):
            if field == "events" and wrong == []:
                continue
            content = json.dumps({**body, field: wrong}).encode()
            reply = send(shared, attempt, path, content)
            refused(reply, 422, "invalid")
            fields = [e["field"] for e in reply.json()["errors"]]
            assert any(f == field or f.startswith(f"{field}.") or f == "body" for f in fields)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("path", [*TASK_SCOPED, "/internal/task-claim"])
def test_more_than_a_megabyte_is_refused(shared: Bench, attempt: Attempt, path: str) -> None:
    content = b'{"x": "' + b"y" * MAX_BODY + b'"}'
    refused(send(shared, attempt, path, content), 413, "too_large")
    headers = {"X-Trace-Task-Capability": attempt.token, **shared.worker_headers}
    pieces = (b"y" * 65_536 for _ in range(20))  # without Content-Length: counted while it arrives
    refused(shared.http.post(path, content=pieces, headers=headers), 413, "too_large")
    assert shared.http.get("/healthz").status_code == 200


@pytest.mark.usefixtures("unchanged")
def test_a_large_body_without_a_token_is_not_read(shared: Bench) -> None:
    content = b"y" * (MAX_BODY + 1)
    reply = shared.http.post("/v1/task/complete", content=content)
    assert reply.status_code in (401, 413)


# --- below HTTP -------------------------------------------------------------------------------


def raw(bench: Bench, request: bytes) -> bytes:
    context = ssl.create_default_context(cafile=str(bench.live.secrets.ca))
    place = ("127.0.0.1", bench.live.cfg.internal_port)
    with (
        socket.create_connection(place, timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
    ):
        sock.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer and (piece := sock.recv(65_536)):
            answer += piece
        return answer


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "request_text",
    [
        b"nonsense\r\n\r\n",
        b"POST /v1/task/complete HTTP/9.9\r\nHost: x\r\n\r\n",
        b"POST /v1/task/complete HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/task/complete HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n"
        b"Content-Length: 2\r\n\r\nab",
        b"POST /v1/task/complete HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/task/complete HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /v1/task/complete HTTP/1.1\r\nHost: x\r\nX-Trace-Task-Capability: a\x00b\r\n\r\n",
    ],
)
def test_invalid_http_is_refused_and_the_listener_keeps_serving(
    shared: Bench, request_text: bytes
) -> None:
    answer = raw(shared, request_text)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
    assert shared.http.get("/healthz").status_code == 200


@pytest.mark.usefixtures("unchanged")
def test_a_client_that_disconnects_mid_request_changes_nothing(
    shared: Bench, attempt: Attempt
) -> None:
    body = json.dumps(bodies(attempt)["/v1/task/complete"]).encode()
    head = (
        b"POST /v1/task/complete HTTP/1.1\r\nHost: x\r\nX-Trace-Task-Capability: "
        + attempt.token.encode()
        + b"\r\nContent-Length: "
        + str(len(body)).encode()
        + b"\r\n\r\n"
    )
    context = ssl.create_default_context(cafile=str(shared.live.secrets.ca))
    place = ("127.0.0.1", shared.live.cfg.internal_port)
    with (
        socket.create_connection(place, timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
    ):
        sock.sendall(head + body[:-1])
    assert shared.http.get("/healthz").status_code == 200


def test_no_token_is_logged(
    shared: Bench, attempt: Attempt, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = shared.live.secrets.worker_token
    bad = foreign_key(shared, attempt)
    for token in (attempt.token, bad):
        shared.heartbeat(attempt, token=token)
        shared.heartbeat(attempt, token=token, attempt="x")
    for token in (worker, worker[:-1]):
        headers = {"X-Trace-Worker-Token": token}
        shared.http.get(f"/internal/task-fetch?task_id={uuid4()}", headers=headers)
    shared.complete(shared.attempt(), "Failed", error_message="x")
    shared.live.drain()
    out, err = capfd.readouterr()
    assert "events_routed" in out + err  # the log was captured
    for secret in (attempt.token, bad, worker, worker[:-1], attempt.claimed["lease_token"]):
        assert secret not in out + err


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("fields", [{"partition_key": "a\0b"}, {"x": {"y": ["a\0b"]}}, {"\0": 1}])
def test_a_nul_in_any_text_is_refused_with_422(
    shared: Bench, attempt: Attempt, fields: dict[str, Any]
) -> None:
    event = {**attempt.event(), **fields}
    refused(shared.events(attempt, event), 422, "invalid")
    refused(shared.complete(attempt, "Completed", events=[event]), 422, "invalid")
