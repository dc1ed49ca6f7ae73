"""`POST /v1/task/buffer-publish`: both request shapes create one record and one message."""

from uuid import UUID, uuid4

import pytest

from support.lifecycle import Attempt, Bench

URI = "s3://trace-scratch/buffers/batch.jsonl"


def records(bench: Bench, attempt: Attempt) -> list[dict]:
    query = "SELECT * FROM buffer_publishes WHERE task_id = %s ORDER BY batch_uri"
    return bench.rows(query, attempt.task_id)


def messages(bench: Bench, attempt: Attempt) -> list[dict]:
    bench.live.drain()
    sent = bench.messages("buffer")
    return [m for m in sent if m["producer"]["task_id"] == attempt.task_id]


def by_uuid(attempt: Attempt, **fields: object) -> dict:
    names = ("dataset_uuid", "dataset_version")
    return {**{n: attempt.output[n] for n in names}, "batch_uri": URI, **fields}


def test_a_batch_addressed_by_uuid_is_recorded_and_sent(shared: Bench) -> None:
    attempt = shared.attempt()
    reply = shared.publish(attempt, **by_uuid(attempt, record_count=1000))
    assert reply.status_code == 200, reply.text
    assert reply.json()["status"] == "Accepted"
    (record,) = records(shared, attempt)
    assert str(record["publish_id"]) == reply.json()["publish_id"]
    assert (record["record_count"], record["content_type"]) == (1000, "application/jsonl")
    (message,) = messages(shared, attempt)
    assert message == {
        "kind": "buffer_batch",
        "publish_id": reply.json()["publish_id"],
        "org_id": str(record["org_id"]),
        "dataset_uuid": attempt.output["dataset_uuid"],
        "dataset_version": attempt.output["dataset_version"],
        "batch_uri": URI,
        "record_count": 1000,
        "producer": {"task_id": attempt.task_id, "attempt": 1},
    }


def test_a_batch_addressed_by_dataset_name_is_recorded_and_sent(shared: Bench) -> None:
    dag = shared.dag()
    attempt = shared.attempt(dag=dag)
    reply = shared.publish(
        attempt,
        batch_uri=URI,
        content_type="application/x-ndjson",
        batch_size_bytes=123456,
        dedupe_scope=dag.published,
    )
    assert reply.status_code == 200, reply.text
    (record,) = records(shared, attempt)
    assert str(record["dataset_uuid"]) == attempt.output["dataset_uuid"]
    assert str(record["dataset_version"]) == attempt.output["dataset_version"]
    assert record["batch_size_bytes"] == 123456
    assert record["content_type"] == "application/x-ndjson"
    (message,) = messages(shared, attempt)
    assert message["dataset_uuid"] == attempt.output["dataset_uuid"]
    assert message["record_count"] is None


def test_a_duplicate_publish_gets_the_same_answer_and_creates_nothing(shared: Bench) -> None:
    dag = shared.dag()
    attempt = shared.attempt(dag=dag)
    first = shared.publish(attempt, **by_uuid(attempt))
    before = shared.dump()
    again = shared.publish(attempt, **by_uuid(attempt))
    by_name = shared.publish(attempt, batch_uri=URI, dedupe_scope=dag.published)
    assert again.json() == by_name.json() == first.json()
    assert shared.dump() == before
    assert len(messages(shared, attempt)) == 1
    assert UUID(first.json()["publish_id"])
    shared.publish(attempt, **by_uuid(attempt))
    assert len(messages(shared, attempt)) == 1


def test_each_batch_gets_its_own_record(shared: Bench) -> None:
    attempt = shared.attempt()
    shared.publish(attempt, **by_uuid(attempt))
    shared.publish(attempt, **by_uuid(attempt, batch_uri=URI + "2"))
    assert len(records(shared, attempt)) == 2
    assert len(messages(shared, attempt)) == 2


def test_each_attempt_gets_its_own_record(shared: Bench) -> None:
    first = shared.attempt()
    shared.publish(first, **by_uuid(first))
    shared.complete(first, "Failed")
    second = shared.next_attempt(first)
    assert shared.publish(second, **by_uuid(second)).status_code == 200
    assert [r["attempt"] for r in records(shared, first)] == [1, 2]


def test_a_stale_fence_publishes_nothing(shared: Bench) -> None:
    first = shared.attempt()
    shared.complete(first, "Failed")
    second = shared.next_attempt(first)
    before = shared.dump()
    reply = shared.publish(first, **by_uuid(first))
    assert (reply.status_code, reply.json()["reason"]) == (409, "stale_attempt")
    reply = shared.publish(second, **by_uuid(second, lease_token=str(uuid4())))
    assert (reply.status_code, reply.json()["reason"]) == (409, "stale_lease")
    assert shared.dump() == before


def test_a_publish_after_the_end_of_the_attempt_is_refused(shared: Bench) -> None:
    attempt = shared.attempt()
    shared.publish(attempt, **by_uuid(attempt))
    shared.complete(attempt)
    reply = shared.publish(attempt, **by_uuid(attempt))
    assert (reply.status_code, reply.json()["reason"]) == (409, "not_running")


def test_publishing_to_a_dataset_that_the_task_does_not_write_is_forbidden(shared: Bench) -> None:
    dag = shared.dag()
    attempt, other = shared.attempt(), shared.attempt(dag=dag)
    before = shared.dump()
    for target in (
        by_uuid(other),
        by_uuid(attempt, dataset_version=str(uuid4())),
        {"batch_uri": URI, "dedupe_scope": dag.published},
    ):
        reply = shared.publish(attempt, **target)
        assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")
    assert shared.dump() == before


TARGET = {"dataset_uuid": str(uuid4())}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (TARGET, "batch_uri"),
        ({"batch_uri": URI}, "body"),
        ({**TARGET, "dedupe_scope": "name", "batch_uri": URI}, "body"),
        ({**TARGET, "batch_uri": "/etc/passwd"}, "batch_uri"),
        ({**TARGET, "batch_uri": ""}, "batch_uri"),
        ({**TARGET, "batch_uri": URI, "batch_size_bytes": 16 * 2**20 + 1}, "batch_size_bytes"),
        ({**TARGET, "batch_uri": URI, "record_count": -1}, "record_count"),
        ({**TARGET, "batch_uri": URI, "record_count": 500_001}, "record_count"),
        ({**TARGET, "batch_uri": URI, "rows": []}, "rows"),
        ({"batch_uri": URI, "dedupe_scope": "unpublished_name"}, "dedupe_scope"),
        ({"batch_uri": URI, "dedupe_scope": "Not A Name"}, "dedupe_scope"),
    ],
)
def test_a_malformed_publish_is_refused_with_the_field(
    shared: Bench, body: dict, field: str
) -> None:
    attempt = shared.attempt()
    reply = shared.publish(attempt, **body)
    assert reply.status_code == 422, reply.text
    assert [e["field"] for e in reply.json()["errors"]] == [field]
    assert records(shared, attempt) == []
