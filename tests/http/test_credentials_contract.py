"""`POST /v1/task/credentials`: only the prefixes of the token, only for a current lease."""

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import jwt
import pytest

from support.lifecycle.lifecycle import Attempt, Bench


def credentials(bench: Bench, attempt: Attempt, /, **fields: Any) -> httpx.Response:
    return bench.call("/v1/task/credentials", attempt, **fields)


@pytest.fixture
def consumer(shared: Bench) -> Attempt:
    """An attempt whose input has one committed partition."""
    dag = shared.dag("heartbeat_timeout: 90s")
    producer = shared.attempt(dag=dag)
    publication = shared.write_output(producer)
    assert shared.complete(producer, datasets_published=[publication]).status_code == 200
    shared.live.drain()
    (task_id,) = shared.waiting(dag, "after")
    return shared.claimed(task_id)


def test_credentials_name_the_prefixes_of_the_token_and_end_with_the_lease(
    shared: Bench, consumer: Attempt
) -> None:
    reply = credentials(shared, consumer)
    body = reply.json()
    assert reply.status_code == 200, reply.text
    assert reply.headers["cache-control"] == "no-store"
    s3 = jwt.decode(consumer.token, options={"verify_signature": False})["s3"]
    scratch, export = s3["scratch_prefix"], s3["export_prefix"]
    assert body["read_prefixes"] == [*s3["read_prefixes"], scratch]
    assert body["write_prefixes"] == [*s3["write_prefixes"], scratch, export]
    assert (body["scratch_prefix"], body["export_prefix"]) == (scratch, export)
    assert (body["kind"], body["objects_path"], body["s3"]) == (
        "objects",
        "/v1/task/objects/",
        None,
    )
    lease_end = shared.row(consumer.task_id)["lease_expires_at"]
    assert datetime.fromisoformat(body["expires_at"]) == lease_end


def test_credentials_never_outlive_the_token(shared: Bench) -> None:
    attempt = shared.attempt("timeout: 5s\nheartbeat_timeout: 3600s")
    claims = jwt.decode(attempt.token, options={"verify_signature": False})
    expires_at = datetime.fromisoformat(credentials(shared, attempt).json()["expires_at"])
    assert expires_at.timestamp() == claims["exp"]
    assert shared.row(attempt.task_id)["lease_expires_at"] > expires_at


def test_a_caller_can_ask_for_less_but_not_for_more(shared: Bench, consumer: Attempt) -> None:
    (granted,) = credentials(shared, consumer).json()["read_prefixes"][:-1]
    inside = f"{granted}part/"
    reply = credentials(shared, consumer, read_prefixes=[inside])
    assert reply.json()["read_prefixes"] == [inside]
    generation = granted.removesuffix(f"{granted.split('/')[-3]}/1/")
    for wider in (generation, granted.replace("/1/", "/2/"), "s3://other/a/"):
        assert credentials(shared, consumer, read_prefixes=[wider]).status_code == 403, wider
    for bad in (f"{granted}../", f"{granted}*", "s3://trace/", "file:///etc/"):
        reply = credentials(shared, consumer, read_prefixes=[bad])
        assert reply.status_code == 422, bad
        assert reply.json()["errors"][0]["field"] == "read_prefixes"


def test_a_worker_gets_credentials_of_whole_generations_for_an_operator(
    shared: Bench, consumer: Attempt
) -> None:
    [refused] = [credentials(shared, consumer, generations=True)]
    assert refused.status_code == 401, refused.text  # a function has no worker token
    body = {**consumer.fence, "generations": True}
    headers = {"X-Trace-Task-Capability": consumer.token, **shared.worker_headers}
    reply = shared.http.post("/v1/task/credentials", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    made = reply.json()
    [partition, *_] = credentials(shared, consumer).json()["read_prefixes"]
    [read] = consumer.claimed["task"]["inputs"]
    generation = f"/{read['dataset_uuid']}/{read['dataset_version']}/"
    assert made["read_prefixes"][0].endswith(generation)
    assert partition.startswith(made["read_prefixes"][0])
    assert partition not in made["read_prefixes"]  # one prefix, however many partitions
    assert set(made["write_prefixes"]) < set(made["read_prefixes"])
    lease_end = shared.row(consumer.task_id)["lease_expires_at"]
    assert datetime.fromisoformat(made["expires_at"]) > lease_end


def test_a_stale_or_foreign_fence_gets_no_credentials(shared: Bench, consumer: Attempt) -> None:
    other = shared.attempt()
    assert credentials(shared, consumer, token=other.token).status_code == 403
    assert credentials(shared, consumer, token="").status_code == 401
    wrong = credentials(shared, consumer, lease_token=str(uuid4()))
    assert (wrong.status_code, wrong.json()["reason"]) == (409, "stale_lease")
    expire = "UPDATE tasks SET lease_expires_at = now() - %s WHERE task_id = %s"
    shared.rows(expire, timedelta(seconds=1), consumer.task_id)
    late = credentials(shared, consumer)
    assert (late.status_code, late.json()["reason"]) == (409, "stale_lease")
    assert shared.heartbeat(consumer).status_code == 200
    assert credentials(shared, consumer).status_code == 200
    assert shared.complete(consumer).status_code == 200
    ended = credentials(shared, consumer)
    assert (ended.status_code, ended.json()["reason"]) == (409, "not_running")
