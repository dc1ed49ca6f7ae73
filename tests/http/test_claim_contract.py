"""`POST /internal/task-claim`: one atomic Queued → Running, and the answer to other claims."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import jwt
import pytest

from support.lifecycle.lifecycle import Bench
from trace_etl.api.task import lifecycle as bodies


def test_a_claim_starts_the_attempt_and_returns_its_payload(shared: Bench) -> None:
    (task_id,) = shared.tasks(1, "heartbeat_timeout: 90s")
    reply = shared.claim(task_id, "ecs:cluster/service/task")
    body = reply.json()
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert body["status"] == "Claimed"
    assert body["attempt"] == 1
    assert UUID(body["lease_token"])
    assert body["task"]["task_id"] == task_id
    assert body["task"]["attempt"] == 1
    assert body["task"]["job"]["name"] == "work"
    assert body["task"]["operator"] == "sql"
    assert body["task"]["config"] == {"sql": "SELECT 1 FROM ranges"}
    assert body["task"]["inputs"] == []  # the ranges of a splitter bring no rows
    row = shared.row(task_id)
    assert (row["status"], row["worker_id"]) == ("Running", "ecs:cluster/service/task")
    assert str(row["lease_token"]) == body["lease_token"]
    assert row["lease_expires_at"] - row["started_at"] == timedelta(seconds=90)


def test_answers_contain_exactly_the_fields_of_the_contract(shared: Bench) -> None:
    (task_id, *_) = shared.tasks(3, "runtime: ecs_platform")
    single = shared.claim(task_id).json()
    fetched = shared.fetch(task_id).json()
    several = shared.claim_many("ecs_platform", 10)
    assert several
    assert bodies.Claimed.model_validate(single).model_dump(mode="json") == single
    assert bodies.Fetched.model_validate(fetched).model_dump(mode="json") == fetched
    assert [
        bodies.Claimed.model_validate(task_id).model_dump(mode="json") for task_id in several
    ] == several


def test_the_answer_contains_the_lease_expiry(shared: Bench) -> None:
    attempt = shared.attempt()
    lease_end = datetime.fromisoformat(attempt.claimed["lease_expires_at"])
    assert lease_end == shared.row(attempt.task_id)["lease_expires_at"]
    assert timedelta(seconds=100) < lease_end - datetime.now(UTC) <= timedelta(seconds=120)


def test_outputs_may_be_written_only_under_a_prefix_of_this_attempt(shared: Bench) -> None:
    attempt = shared.attempt()
    ref = attempt.output["storage_ref"]
    assert ref["prefix"].endswith(f"/{attempt.task_id}/1/")
    claims = jwt.decode(attempt.token, options={"verify_signature": False})
    assert claims["s3"]["write_prefixes"] == [f"s3://{ref['bucket']}/{ref['prefix']}"]


def test_the_token_carries_every_claim_of_the_specification(shared: Bench) -> None:
    attempt = shared.attempt("timeout: 10m")
    header = jwt.get_unverified_header(attempt.token)
    claims = jwt.decode(attempt.token, options={"verify_signature": False})
    assert header["alg"] == "ES256"
    assert header["kid"]
    assert claims["iss"] == "trace"
    assert claims["aud"] == "trace.task"
    assert claims["sub"] == f"task:{attempt.task_id}"
    assert claims["task_id"] == attempt.task_id
    assert claims["attempt"] == 1
    assert UUID(claims["org_id"])
    assert UUID(claims["jti"])
    assert claims["exp"] - claims["iat"] == 600 + 300  # the job's timeout and five minutes
    names = {"dataset_uuid", "dataset_version", "storage_ref"}
    assert claims["datasets"]
    assert all(names <= set(dataset) for dataset in claims["datasets"])
    prefixes = {"read_prefixes", "write_prefixes", "scratch_prefix", "export_prefix"}
    assert set(claims["s3"]) == prefixes


def test_no_token_is_valid_longer_than_a_day(shared: Bench) -> None:
    attempt = shared.attempt("timeout: 72h")
    claims = jwt.decode(attempt.token, options={"verify_signature": False})
    assert claims["exp"] - claims["iat"] == 24 * 3600


def test_a_second_claim_is_answered_already_running(shared: Bench) -> None:
    attempt = shared.attempt()
    before = shared.row(attempt.task_id)
    reply = shared.claim(attempt.task_id, "w2")
    assert reply.status_code == 200
    assert reply.json() == {"status": "NotClaimed", "reason": "AlreadyRunning"}
    assert shared.row(attempt.task_id) == before


def test_a_claim_of_a_completed_task_is_answered_completed(shared: Bench) -> None:
    attempt = shared.attempt()
    assert shared.complete(attempt).status_code == 200
    assert shared.claim(attempt.task_id).json()["reason"] == "Completed"


def test_a_claim_of_a_canceled_task_is_answered_canceled(shared: Bench) -> None:
    (task_id,) = shared.tasks()
    assert shared.cancel(task_id).json()["status"] == "Canceled"
    assert shared.claim(task_id).json() == {"status": "NotClaimed", "reason": "Canceled"}


def test_a_claim_of_an_unknown_task_is_answered_not_found(shared: Bench) -> None:
    assert shared.claim(str(uuid4())).json() == {"status": "NotClaimed", "reason": "NotFound"}


def test_a_task_waiting_for_its_retry_is_not_ready(shared: Bench) -> None:
    attempt = shared.attempt()
    shared.complete(attempt, "Failed")
    assert shared.row(attempt.task_id)["retry_at"] is not None
    assert shared.claim(attempt.task_id).json() == {"status": "NotClaimed", "reason": "NotReady"}


def test_a_permanently_failed_task_is_not_ready(shared: Bench) -> None:
    attempt = shared.attempt()
    shared.complete(attempt, "Failed", retryable=False)
    assert shared.claim(attempt.task_id).json()["reason"] == "NotReady"


def test_a_task_of_a_paused_job_is_not_ready_until_the_job_resumes(shared: Bench) -> None:
    (task_id,) = shared.tasks()
    job = shared.row(task_id)["job_id"]
    pause = "UPDATE jobs SET paused_at = now(), paused_by = 'backpressure' WHERE job_id = %s"
    shared.rows(pause, job)
    assert shared.claim(task_id).json() == {"status": "NotClaimed", "reason": "NotReady"}
    assert shared.status(task_id) == "Queued"
    shared.rows("UPDATE jobs SET paused_at = NULL, paused_by = NULL WHERE job_id = %s", job)
    assert shared.claim(task_id).json()["status"] == "Claimed"


def test_a_capped_job_runs_at_most_its_cap_and_the_next_task_when_one_ends(shared: Bench) -> None:
    dag = shared.dag("scaling: {max_concurrency: 2}")
    first, second, third = shared.tasks(3, dag=dag)
    running = shared.claimed(first)
    shared.claimed(second)
    assert shared.claim(third).json() == {"status": "NotClaimed", "reason": "NotReady"}
    assert shared.complete(running).status_code == 200
    assert shared.claim(third).json()["status"] == "Claimed"


def test_a_completion_under_a_cap_wakes_a_waiting_task(shared: Bench) -> None:
    dag = shared.dag("scaling: {max_concurrency: 1}")
    first, second = shared.tasks(2, dag=dag)
    running = shared.claimed(first)
    assert shared.claim(second).json()["reason"] == "NotReady"
    before = shared.messages("ecs_python").count({"task_id": second})
    shared.complete(running)
    shared.live.drain()
    assert shared.messages("ecs_python").count({"task_id": second}) == before + 1


def test_a_retry_is_claimed_as_the_next_attempt_with_a_new_lease(shared: Bench) -> None:
    first = shared.attempt()
    shared.complete(first, "Failed")
    second = shared.next_attempt(first)
    assert second.number == 2
    assert second.claimed["lease_token"] != first.claimed["lease_token"]
    assert second.output["storage_ref"]["prefix"].endswith(f"/{first.task_id}/2/")


def test_every_claim_gets_a_new_lease_token(shared: Bench) -> None:
    ids = shared.tasks(5)
    assert len({shared.claimed(t).claimed["lease_token"] for t in ids}) == 5


# --- claiming several tasks ----------------------------------------------------------------


def test_claim_many_starts_the_oldest_tasks_of_a_runtime_up_to_the_limit(
    shared: Bench,
) -> None:
    ids = shared.tasks(5, "runtime: ecs_platform")
    shared.rows(
        "UPDATE tasks SET queued_at = now() - interval '1 hour' WHERE task_id = ANY(%s::uuid[])",
        ids[2:4],
    )
    claimed = shared.claim_many("ecs_platform", 2)
    assert {c["task"]["task_id"] for c in claimed} == set(ids[2:4])
    assert {c["status"] for c in claimed} == {"Claimed"}
    rest = shared.claim_many("ecs_platform", 100)
    assert {c["task"]["task_id"] for c in rest} == {ids[0], ids[1], ids[4]}
    assert shared.claim_many("ecs_platform", 100) == []


def claim_by_ids(shared: Bench, ids: list[str], **more: Any) -> Any:
    body = {"worker_id": "w", "task_ids": ids, **more}
    path = "/internal/task-claim-many"
    return shared.http.post(path, json=body, headers=shared.worker_headers)


def test_claim_many_starts_the_named_tasks_and_leaves_out_those_that_may_not_run(
    shared: Bench,
) -> None:
    ids = shared.tasks(3)
    shared.claimed(ids[0])
    capped = shared.tasks(2, "scaling: {max_concurrency: 1}")
    asked = [*ids, *capped, ids[1], str(uuid4())]
    claimed = claim_by_ids(shared, asked).json()["claimed"]
    started = [item["task"]["task_id"] for item in claimed]
    assert len(started) == len(set(started)) == 3
    assert {*ids[1:]} < {*started} < {*ids[1:], *capped}
    assert len({item["lease_token"] for item in claimed}) == 3
    assert claim_by_ids(shared, ids).json() == {"claimed": []}


def test_claim_many_takes_a_runtime_or_ids(shared: Bench) -> None:
    [task_id] = shared.tasks(1)
    for more in ({"runtime": "ecs_platform"}, {"task_ids": None}, {"task_ids": []}):
        assert claim_by_ids(shared, [task_id], **more).status_code == 422


def test_claim_many_takes_bulk_tasks_last(shared: Bench) -> None:
    bulk = shared.tasks(1, "runtime: ecs_platform\npriority: bulk")
    normal = shared.tasks(1, "runtime: ecs_platform")
    claimed = [shared.claim_many("ecs_platform", 1)[0]["task"]["task_id"] for _ in range(2)]
    assert claimed == [*normal, *bulk]


def test_claim_many_respects_caps_pauses_and_cancellation(shared: Bench) -> None:
    capped = shared.tasks(3, "runtime: ecs_platform\nscaling: {max_concurrency: 2}")
    paused, canceled = (
        shared.tasks(1, "runtime: ecs_platform"),
        shared.tasks(1, "runtime: ecs_platform"),
    )
    job = shared.row(paused[0])["job_id"]
    shared.rows("UPDATE jobs SET paused_at = now(), paused_by = 'me' WHERE job_id = %s", job)
    shared.cancel(canceled[0])
    claimed = [c["task"]["task_id"] for c in shared.claim_many("ecs_platform", 100)]
    assert len(claimed) == 2
    assert set(claimed) < set(capped)


def test_claim_many_skips_a_job_at_its_cap(shared: Bench) -> None:
    capped = "runtime: ecs_platform\nscaling: {max_concurrency: 1}"
    full = shared.tasks(4, capped)
    shared.claimed(full[0])
    (free,) = shared.tasks(1, capped)
    claimed = [c["task"]["task_id"] for c in shared.claim_many("ecs_platform", 2)]
    assert claimed == [free]  # newer than the tasks of the full job


def test_every_task_is_limited_by_the_cap_it_was_queued_with(shared: Bench) -> None:
    ids = shared.tasks(3, "runtime: ecs_platform\nscaling: {max_concurrency: 1}")
    before = "UPDATE tasks SET max_concurrency = 9, queued_at = now() - interval '1 hour'"
    shared.rows(f"{before} WHERE task_id = %s", ids[1])
    claimed = [c["task"]["task_id"] for c in shared.claim_many("ecs_platform", 10)]
    assert claimed == [ids[1]]  # one task runs, which is the cap of the others


# --- permissions ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/internal/task-claim", "/internal/task-claim-many"])
def test_a_claim_needs_a_worker_token(shared: Bench, path: str) -> None:
    (task_id,) = shared.tasks()
    for headers in ({}, {"X-Trace-Worker-Token": ""}, {"X-Trace-Worker-Token": "guess"}):
        body = {"task_id": task_id, "worker_id": "w1"}
        reply = shared.http.post(path, json=body, headers=headers)
        assert reply.status_code == 401
        assert reply.headers["content-type"] == "application/problem+json"
        assert reply.json()["code"] == "unauthenticated"
    assert shared.status(task_id) == "Queued"


def test_a_capability_token_claims_nothing(shared: Bench) -> None:
    attempt = shared.attempt()
    (task_id,) = shared.tasks()
    reply = shared.http.post(
        "/internal/task-claim",
        json={"task_id": task_id, "worker_id": "w1"},
        headers={
            "X-Trace-Task-Capability": attempt.token,
            "X-Trace-Worker-Token": attempt.token,
        },
    )
    assert reply.status_code == 401
    assert shared.status(task_id) == "Queued"


def test_the_user_api_does_not_serve_the_internal_endpoints(shared: Bench) -> None:
    (task_id,) = shared.tasks()
    body = {"task_id": task_id, "worker_id": "w1"}
    for path in ("/internal/task-claim", "/v1/task/heartbeat", "/v1/task/complete"):
        reply = shared.user.post(path, json=body, headers=shared.worker_headers)
        assert reply.status_code == 404
    assert shared.http.get("/v1/tasks").status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"worker_id": "w1"}, "task_id"),
        ({"task_id": "no-uuid", "worker_id": "w1"}, "task_id"),
        ({"task_id": str(uuid4())}, "worker_id"),
        ({"task_id": str(uuid4()), "worker_id": ""}, "worker_id"),
        ({"task_id": str(uuid4()), "worker_id": "w" * 257}, "worker_id"),
        ({"task_id": str(uuid4()), "worker_id": 7}, "worker_id"),
        ({"task_id": str(uuid4()), "worker_id": "w1", "force": True}, "force"),
    ],
)
def test_a_malformed_claim_is_refused_with_the_field(shared: Bench, body: dict, field: str) -> None:
    reply = shared.http.post("/internal/task-claim", json=body, headers=shared.worker_headers)
    assert reply.status_code == 422
    assert reply.json()["code"] == "invalid"
    assert [e["field"] for e in reply.json()["errors"]] == [field]


def test_a_request_without_tls_gets_no_answer(shared: Bench) -> None:
    import http.client

    plain = http.client.HTTPConnection("127.0.0.1", shared.live.cfg.internal_port, timeout=10)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        plain.request("GET", "/healthz")
        plain.getresponse()
    plain.close()
