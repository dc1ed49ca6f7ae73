"""`POST /v1/task/heartbeat`: extends the lease, reports a cancel request, renews the token."""

import time
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import jwt
import pytest

from support.lifecycle.lifecycle import Attempt, Bench
from trace_etl.dispatcher.task_api.authorization.tokens import PemSigner, TaskTokens

PATHS = ["/v1/task/heartbeat", "/internal/heartbeat"]


def aged(bench: Bench, attempt: Attempt, *, used: float) -> str:
    """Return the attempt's token as if this share of its lifetime had passed, signed with our key."""
    claims = jwt.decode(attempt.token, options={"verify_signature": False})
    life = claims["exp"] - claims["iat"]
    claims["iat"] = int(time.time() - life * used)
    claims["exp"] = claims["iat"] + life
    (key,) = bench.live.cfg.task_keys_dir.glob("*.pem")
    return jwt.encode(claims, key.read_bytes(), algorithm="ES256", headers={"kid": key.stem})


@pytest.mark.parametrize("path", PATHS)
def test_a_heartbeat_extends_the_lease(shared: Bench, path: str) -> None:
    attempt = shared.attempt()
    soon = "UPDATE tasks SET lease_expires_at = now() + interval '5 seconds' WHERE task_id = %s"
    shared.rows(soon, attempt.task_id)
    before = shared.row(attempt.task_id)
    reply = shared.call(path, attempt)
    assert reply.status_code == 200, reply.text
    body, after = reply.json(), shared.row(attempt.task_id)
    assert body["status"] == "Accepted"
    assert body["cancel_requested"] is False
    assert body["capability_token"] is None
    assert datetime.fromisoformat(body["lease_expires_at"]) == after["lease_expires_at"]
    assert after["lease_expires_at"] - before["lease_expires_at"] > timedelta(seconds=100)
    assert {**after, "lease_expires_at": 0} == {**before, "lease_expires_at": 0}


def test_a_heartbeat_does_not_extend_the_hard_timeout(shared: Bench) -> None:
    attempt = shared.attempt()
    before = shared.row(attempt.task_id)["deadline_at"]
    shared.heartbeat(attempt)
    assert shared.row(attempt.task_id)["deadline_at"] == before


def test_a_heartbeat_reports_a_cancel_request_and_extends_the_lease(shared: Bench) -> None:
    attempt = shared.attempt()
    assert shared.cancel(attempt.task_id).json()["status"] == "Running"
    reply = shared.heartbeat(attempt)
    assert reply.status_code == 200
    assert reply.json()["cancel_requested"] is True
    assert shared.status(attempt.task_id) == "Running"


def test_a_heartbeat_replaces_a_token_that_expires_soon(shared: Bench) -> None:
    attempt = shared.attempt()
    reply = shared.heartbeat(attempt, token=aged(shared, attempt, used=0.8))
    fresh = reply.json()["capability_token"]
    old = jwt.decode(attempt.token, options={"verify_signature": False})
    new = jwt.decode(fresh, options={"verify_signature": False})
    assert new["exp"] - new["iat"] == old["exp"] - old["iat"]
    assert new["iat"] >= time.time() - 60
    assert new["jti"] != old["jti"]
    renewed = {"iat", "exp", "jti"}
    assert {k: v for k, v in new.items() if k not in renewed} == {
        k: v for k, v in old.items() if k not in renewed
    }
    again = shared.heartbeat(attempt, token=fresh)
    assert again.status_code == 200
    assert again.json()["capability_token"] is None


def test_a_heartbeat_does_not_replace_a_new_token(shared: Bench) -> None:
    attempt = shared.attempt()
    reply = shared.heartbeat(attempt, token=aged(shared, attempt, used=0.5))
    assert reply.status_code == 200
    assert reply.json()["capability_token"] is None


def test_a_stale_fence_never_gets_a_new_token(shared: Bench) -> None:
    first = shared.attempt()
    token = aged(shared, first, used=0.9)
    shared.complete(first, "Failed")
    shared.next_attempt(first)
    for stale in ({}, {"lease_token": str(uuid4())}):
        reply = shared.heartbeat(first, token=token, **stale)
        assert reply.status_code == 409
        assert "capability_token" not in reply.text


@pytest.mark.parametrize("path", PATHS)
def test_a_heartbeat_of_an_older_attempt_is_refused(shared: Bench, path: str) -> None:
    first = shared.attempt()
    shared.complete(first, "Failed")
    shared.next_attempt(first)
    before = shared.row(first.task_id)
    reply = shared.call(path, first)
    assert reply.status_code == 409
    assert reply.json()["code"] == "lease_lost"
    assert reply.json()["reason"] == "stale_attempt"
    assert shared.row(first.task_id) == before


def test_a_heartbeat_with_another_lease_is_refused(shared: Bench) -> None:
    attempt = shared.attempt()
    before = shared.row(attempt.task_id)
    reply = shared.heartbeat(attempt, lease_token=str(uuid4()))
    assert (reply.status_code, reply.json()["reason"]) == (409, "stale_lease")
    assert shared.row(attempt.task_id) == before


@pytest.mark.parametrize("end", ["Completed", "Failed", "Canceled"])
def test_a_heartbeat_after_the_end_of_the_attempt_is_refused(shared: Bench, end: str) -> None:
    attempt = shared.attempt()
    shared.complete(attempt, end)
    before = shared.row(attempt.task_id)
    reply = shared.heartbeat(attempt)
    assert (reply.status_code, reply.json()["reason"]) == (409, "not_running")
    assert shared.row(attempt.task_id) == before


def test_a_heartbeat_does_not_revive_a_reaped_attempt(shared: Bench) -> None:
    attempt = shared.reaped()
    before = shared.row(attempt.task_id)
    reply = shared.heartbeat(attempt)
    assert (reply.status_code, reply.json()["reason"]) == (409, "not_running")
    assert shared.row(attempt.task_id) == before


def test_an_expired_lease_can_be_extended_until_it_is_reaped(shared: Bench) -> None:
    attempt = shared.attempt()
    shared.let_lease_expire(attempt)
    assert shared.heartbeat(attempt).status_code == 200
    shared.reap()  # other tests leave expired attempts
    assert shared.row(attempt.task_id)["status"] == "Running"


def test_a_heartbeat_of_a_deleted_task_is_not_found(shared: Bench) -> None:
    attempt = shared.attempt()
    shared.rows("DELETE FROM tasks WHERE task_id = %s", attempt.task_id)
    reply = shared.heartbeat(attempt)
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found")


def test_a_fence_that_does_not_match_the_token_is_forbidden(shared: Bench) -> None:
    first, second = shared.attempt(), shared.attempt()
    before = shared.row(second.task_id)
    reply = shared.heartbeat(second, token=first.token)
    assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")
    assert shared.heartbeat(first, attempt=2).status_code == 403
    assert shared.row(second.task_id) == before


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"attempt": 0}, "attempt"),
        ({"attempt": "1"}, "attempt"),
        ({"attempt": None}, "attempt"),
        ({"attempt": 2**31}, "attempt"),
        ({"lease_token": "x"}, "lease_token"),
        ({"task_id": 5}, "task_id"),
        ({"status": "Running"}, "status"),
    ],
)
def test_a_malformed_heartbeat_is_refused_with_the_field(
    shared: Bench, change: dict, field: str
) -> None:
    attempt = shared.attempt()
    reply = shared.heartbeat(attempt, **change)
    assert reply.status_code == 422, reply.text
    assert [e["field"] for e in reply.json()["errors"]] == [field]


def test_every_replica_verifies_tokens_of_the_other_replicas(shared: Bench) -> None:
    attempt = shared.attempt()
    elsewhere = TaskTokens(PemSigner(shared.live.cfg.task_keys_dir))
    assert elsewhere.verify(attempt.token).task_id == UUID(attempt.task_id)
