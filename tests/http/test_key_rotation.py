"""Rotation of signing keys and worker tokens on a running Dispatcher."""

from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
import pytest
from typer.testing import CliRunner

from support.lifecycle.lifecycle import Attempt, Bench, bench
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied
from trace_etl.cli.main import app
from trace_etl.lite.credentials import keys
from trace_etl.lite.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home directory with keys and tokens like those of `trace up`."""
    place = Home(tmp_path / "home")
    place.open()
    keys.ensure_task_key(place.task_keys)
    keys.ensure_worker_token(place.worker_token)
    return place


@pytest.fixture
def rotating(
    templates: Templates, secrets: Secrets, home: Home, tmp_path: Path
) -> Generator[Bench]:
    """A Dispatcher that uses the keys of the home directory."""
    mine = {"task_keys_dir": home.task_keys, "worker_tokens_file": home.worker_token}
    with (
        copied(templates) as dsns,
        live(secrets, dsns, tmp_path / "objects", **mine) as running,
        bench(running) as own_bench,
    ):
        yield own_bench


def trace(home: Home, *words: str) -> str:
    result = CliRunner().invoke(app, [*words, "--home", str(home.path)])
    assert result.exit_code == 0, result.output
    return result.output


def kid(token: str) -> str:
    return jwt.get_unverified_header(token)["kid"]


def worker(home: Home, line: int = 0) -> dict[str, str]:
    return {"X-Trace-Worker-Token": home.worker_token.read_text().splitlines()[line]}


def claim(bench: Bench, task_id: str, headers: dict[str, str]):
    body = {"task_id": task_id, "worker_id": "w1"}
    return bench.http.post("/internal/task-claim", json=body, headers=headers)


def jwks(bench: Bench, home: Home, **headers: str):
    return bench.http.get("/internal/jwks/task", headers={**worker(home), **headers})


def test_new_tokens_use_the_rotated_key_and_old_tokens_stay_valid(
    rotating: Bench, home: Home
) -> None:
    first, second = rotating.tasks(2)
    before = Attempt(claim(rotating, first, worker(home)).json())
    trace(home, "keys", "rotate")
    after = Attempt(claim(rotating, second, worker(home)).json())
    assert kid(after.token) > kid(before.token)
    for attempt in (before, after):
        assert rotating.heartbeat(attempt).status_code == 200
        assert rotating.complete(attempt).status_code == 200
    published = jwks(rotating, home).json()["keys"]
    assert [key["kid"] for key in published] == [kid(before.token), kid(after.token)]


def test_the_published_keys_verify_the_tokens(rotating: Bench, home: Home) -> None:
    (task_id,) = rotating.tasks()
    token = claim(rotating, task_id, worker(home)).json()["capability_token"]
    published = jwt.PyJWKSet.from_dict(jwks(rotating, home).json())
    key = published[kid(token)]
    claims = jwt.decode(token, key, algorithms=["ES256"], audience="trace.task", issuer="trace")
    assert claims["task_id"] == task_id
    (jwk,) = jwks(rotating, home).json()["keys"]
    assert set(jwk) == {"kty", "crv", "use", "alg", "kid", "x", "y"}  # never the private key


def test_the_published_keys_are_cacheable_and_change_on_rotation(
    rotating: Bench, home: Home
) -> None:
    first = jwks(rotating, home)
    assert first.headers["cache-control"] == "private, max-age=300"
    tag = first.headers["etag"]
    known = jwks(rotating, home, **{"If-None-Match": tag})
    assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", tag)
    assert jwks(rotating, home, **{"If-None-Match": f'"x", W/{tag}'}).status_code == 304
    trace(home, "keys", "rotate")
    fresh = jwks(rotating, home, **{"If-None-Match": tag})
    assert fresh.status_code == 200
    assert fresh.headers["etag"] != tag
    assert len(fresh.json()["keys"]) == 2


def test_the_keys_need_no_token(rotating: Bench) -> None:
    assert rotating.http.get("/internal/jwks/task").status_code == 200


def test_an_old_key_is_removed_after_its_last_token_expired(rotating: Bench, home: Home) -> None:
    (task_id,) = rotating.tasks()
    attempt = Attempt(claim(rotating, task_id, worker(home)).json())
    assert rotating.heartbeat(attempt).status_code == 200  # verified and cached
    now = datetime.now(UTC)
    keys.rotate_task_key(home.task_keys, now=now)
    rotation = keys.rotate_task_key(home.task_keys, now=now + timedelta(hours=24, minutes=59))
    assert kid(attempt.token) in rotation.verify
    assert rotation.pruned == []
    assert rotating.heartbeat(attempt).status_code == 200
    later_rotation = keys.rotate_task_key(home.task_keys, now=now + timedelta(hours=25, minutes=1))
    assert later_rotation.pruned == [kid(attempt.token)]
    reply = rotating.heartbeat(attempt)
    assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated")
    assert kid(attempt.token) not in {k["kid"] for k in jwks(rotating, home).json()["keys"]}


def test_a_key_with_a_custom_name_is_never_removed(home: Home) -> None:
    (key_file,) = home.task_keys.glob("*.pem")
    key_file.rename(home.task_keys / "mine.pem")
    far = datetime.now(UTC) + timedelta(days=400)
    assert keys.rotate_task_key(home.task_keys, now=far).pruned == []
    assert (home.task_keys / "mine.pem").exists()


def test_two_worker_tokens_are_valid_together_and_a_third_is_not(
    rotating: Bench, home: Home
) -> None:
    first = worker(home)
    ids = iter(rotating.tasks(5))
    trace(home, "keys", "rotate-worker")
    second = worker(home)
    assert first != second
    assert worker(home, 1) == first
    assert claim(rotating, next(ids), first).json()["status"] == "Claimed"
    assert claim(rotating, next(ids), second).json()["status"] == "Claimed"
    trace(home, "keys", "rotate-worker")
    assert claim(rotating, next(ids), first).status_code == 401
    assert claim(rotating, next(ids), second).json()["status"] == "Claimed"
    assert claim(rotating, next(ids), worker(home)).json()["status"] == "Claimed"


def test_rotated_secrets_are_readable_only_by_their_owner_and_not_printed(home: Home) -> None:
    output = trace(home, "keys", "rotate") + trace(home, "keys", "rotate-worker")
    for path in [*home.task_keys.iterdir(), home.worker_token]:
        assert path.stat().st_mode & 0o777 == 0o600
    assert len(list(home.task_keys.iterdir())) == 2
    for secret in home.worker_token.read_text().split():
        assert secret not in output


def test_rotating_without_a_stack_is_refused_with_the_reason(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["keys", "rotate", "--home", str(tmp_path / "nowhere")])
    assert result.exit_code == 3
    assert "trace up" in result.output
    assert not (tmp_path / "nowhere").exists()
