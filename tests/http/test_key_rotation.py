"""Rotating what signs and what identifies, on a live Dispatcher."""

from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
import pytest
from typer.testing import CliRunner

from support.dispatcher import Secrets, live
from support.lifecycle import Attempt, Bench, bench
from support.postgres import Templates, copied
from trace_etl.cli.main import app
from trace_etl.lite.credentials import keys
from trace_etl.lite.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with keys and tokens, as `trace up` leaves it."""
    place = Home(tmp_path / "home")
    place.open()
    keys.ensure_task_key(place.task_keys)
    keys.ensure_worker_token(place.worker_token)
    return place


@pytest.fixture
def rotating(
    templates: Templates, secrets: Secrets, home: Home, tmp_path: Path
) -> Generator[Bench]:
    """A Dispatcher with the keys of that home."""
    mine = {"task_keys_dir": home.task_keys, "worker_tokens_file": home.worker_token}
    with (
        copied(templates) as dsns,
        live(secrets, dsns, tmp_path / "objects", **mine) as running,
        bench(running) as made,
    ):
        yield made


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


def test_a_rotated_key_signs_what_is_new_and_the_old_one_verifies_what_is_old(
    rotating: Bench, home: Home
) -> None:
    one, two = rotating.tasks(2)
    before = Attempt(claim(rotating, one, worker(home)).json())
    trace(home, "keys", "rotate")
    after = Attempt(claim(rotating, two, worker(home)).json())
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
    assert set(jwk) == {"kty", "crv", "use", "alg", "kid", "x", "y"}  # never the private half


def test_the_keys_may_be_cached_and_a_rotation_shows(rotating: Bench, home: Home) -> None:
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


def test_the_keys_need_a_worker_token(rotating: Bench) -> None:
    assert rotating.http.get("/internal/jwks/task").status_code == 401


def test_a_key_is_dropped_when_its_last_token_must_have_expired(
    rotating: Bench, home: Home
) -> None:
    (task_id,) = rotating.tasks()
    attempt = Attempt(claim(rotating, task_id, worker(home)).json())
    assert rotating.heartbeat(attempt).status_code == 200  # verified, and remembered
    now = datetime.now(UTC)
    keys.rotate_task_key(home.task_keys, now=now)
    kept = keys.rotate_task_key(home.task_keys, now=now + timedelta(hours=24, minutes=59))
    assert kid(attempt.token) in kept.verify
    assert kept.pruned == []
    assert rotating.heartbeat(attempt).status_code == 200
    spent = keys.rotate_task_key(home.task_keys, now=now + timedelta(hours=25, minutes=1))
    assert spent.pruned == [kid(attempt.token)]
    reply = rotating.heartbeat(attempt)
    assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated")
    assert kid(attempt.token) not in {k["kid"] for k in jwks(rotating, home).json()["keys"]}


def test_a_key_with_a_name_of_its_own_is_never_dropped_by_guesswork(home: Home) -> None:
    (made,) = home.task_keys.glob("*.pem")
    made.rename(home.task_keys / "mine.pem")
    far = datetime.now(UTC) + timedelta(days=400)
    assert keys.rotate_task_key(home.task_keys, now=far).pruned == []
    assert (home.task_keys / "mine.pem").exists()


def test_two_worker_tokens_are_valid_at_once_and_a_third_is_not(
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


def test_rotations_keep_secrets_to_their_owner_and_out_of_sight(home: Home) -> None:
    shown = trace(home, "keys", "rotate") + trace(home, "keys", "rotate-worker")
    for path in [*home.task_keys.iterdir(), home.worker_token]:
        assert path.stat().st_mode & 0o777 == 0o600
    assert len(list(home.task_keys.iterdir())) == 2
    for secret in home.worker_token.read_text().split():
        assert secret not in shown


def test_rotating_where_no_stack_ever_was_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["keys", "rotate", "--home", str(tmp_path / "nowhere")])
    assert result.exit_code == 3
    assert "trace up" in result.output
    assert not (tmp_path / "nowhere").exists()
