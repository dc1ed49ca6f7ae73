"""`POST /v1/task/buffer-publish`: both request shapes create one record and one message."""

from uuid import UUID, uuid4

import pytest

from support.data.buffered import Producer, batch_target
from support.lifecycle.lifecycle import Attempt, Bench

URI = "s3://trace/buffers/batch.jsonl"


def buffered(bench: Bench) -> Producer:
    """Deploy a DAG with one job that publishes a buffered dataset."""
    producer = Producer(bench, f"alerts_{uuid4().hex[:12]}")
    producer.deploy("one")
    return producer


def own_uri(attempt: Attempt, name: str = "batch.jsonl") -> str:
    return batch_target(attempt, name)["batch_uri"]


def records(bench: Bench, attempt: Attempt) -> list[dict]:
    query = "SELECT * FROM buffer_publishes WHERE task_id = %s ORDER BY batch_uri"
    return bench.rows(query, attempt.task_id)


def messages(bench: Bench, attempt: Attempt) -> list[dict]:
    bench.live.drain()
    sent = bench.messages("buffer")
    return [m for m in sent if m["producer"]["task_id"] == attempt.task_id]


def by_uuid(attempt: Attempt, **fields: object) -> dict:
    names = ("dataset_uuid", "dataset_version")
    return {**{n: attempt.output[n] for n in names}, "batch_uri": own_uri(attempt), **fields}


def test_a_batch_addressed_by_uuid_is_recorded_and_sent(shared: Bench) -> None:
    attempt = buffered(shared).attempt("one")
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
        "batch_uri": own_uri(attempt),
        "record_count": 1000,
        "producer": {"task_id": attempt.task_id, "attempt": 1},
    }


def test_a_batch_addressed_by_dataset_name_is_recorded_and_sent(shared: Bench) -> None:
    producer = buffered(shared)
    attempt = producer.attempt("one")
    reply = shared.publish(
        attempt,
        batch_uri=own_uri(attempt),
        content_type="application/x-ndjson",
        batch_size_bytes=123456,
        dedupe_scope=producer.published,
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
    producer = buffered(shared)
    attempt = producer.attempt("one")
    first = shared.publish(attempt, **by_uuid(attempt))
    before = shared.dump()
    again = shared.publish(attempt, **by_uuid(attempt))
    by_name = shared.publish(attempt, batch_uri=own_uri(attempt), dedupe_scope=producer.published)
    assert again.json() == by_name.json() == first.json()
    assert shared.dump() == before
    assert len(messages(shared, attempt)) == 1
    assert UUID(first.json()["publish_id"])
    shared.publish(attempt, **by_uuid(attempt))
    assert len(messages(shared, attempt)) == 1


def test_each_batch_gets_its_own_record(shared: Bench) -> None:
    attempt = buffered(shared).attempt("one")
    shared.publish(attempt, **by_uuid(attempt))
    shared.publish(attempt, **by_uuid(attempt, batch_uri=own_uri(attempt, "2.jsonl")))
    assert len(records(shared, attempt)) == 2
    assert len(messages(shared, attempt)) == 2


def test_each_attempt_gets_its_own_record(shared: Bench) -> None:
    first = buffered(shared).attempt("one")
    shared.publish(first, **by_uuid(first))
    shared.complete(first, "Failed")
    second = shared.next_attempt(first)
    assert shared.publish(second, **by_uuid(second)).status_code == 200
    assert [r["attempt"] for r in records(shared, first)] == [1, 2]


def test_a_stale_fence_publishes_nothing(shared: Bench) -> None:
    first = buffered(shared).attempt("one")
    shared.complete(first, "Failed")
    second = shared.next_attempt(first)
    before = shared.dump()
    reply = shared.publish(first, **by_uuid(first))
    assert (reply.status_code, reply.json()["reason"]) == (409, "stale_attempt")
    reply = shared.publish(second, **by_uuid(second, lease_token=str(uuid4())))
    assert (reply.status_code, reply.json()["reason"]) == (409, "stale_lease")
    assert shared.dump() == before


def test_a_publish_after_the_end_of_the_attempt_is_refused(shared: Bench) -> None:
    attempt = buffered(shared).attempt("one")
    shared.publish(attempt, **by_uuid(attempt))
    shared.complete(attempt)
    reply = shared.publish(attempt, **by_uuid(attempt))
    assert (reply.status_code, reply.json()["reason"]) == (409, "not_running")


def test_publishing_to_a_dataset_that_the_task_does_not_write_is_forbidden(shared: Bench) -> None:
    producer = buffered(shared)
    attempt, other = buffered(shared).attempt("one"), producer.attempt("one")
    before = shared.dump()
    for target in (
        by_uuid(other),
        by_uuid(attempt, dataset_version=str(uuid4())),
        {"batch_uri": own_uri(attempt), "dedupe_scope": producer.published},
    ):
        reply = shared.publish(attempt, **target)
        assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")
    assert shared.dump() == before


def test_a_dataset_that_is_not_buffered_is_refused(shared: Bench) -> None:
    dag = shared.dag()
    attempt = shared.attempt(dag=dag)
    before = shared.dump()
    for target, field in (
        (by_uuid(attempt), "dataset_uuid"),
        ({"batch_uri": own_uri(attempt), "dedupe_scope": dag.published}, "dedupe_scope"),
    ):
        reply = shared.publish(attempt, **target)
        assert (reply.status_code, reply.json()["code"]) == (422, "not_buffered")
        assert [error["field"] for error in reply.json()["errors"]] == [field]
        assert "write_mode: buffered" in reply.json()["detail"]
    assert shared.dump() == before


def test_both_prefixes_of_the_attempt_are_accepted_and_no_other(shared: Bench) -> None:
    attempt = buffered(shared).attempt("one")
    root = f"s3://{attempt.output['storage_ref']['bucket']}/buffers"
    dataset, task = attempt.output["dataset_uuid"], attempt.task_id
    for uri in (f"{root}/{dataset}/{task}/1/a.jsonl", f"{root}/{task}/1/a/b.jsonl"):
        assert shared.publish(attempt, **by_uuid(attempt, batch_uri=uri)).status_code == 200
    for uri in (
        f"{root}/{dataset}/{task}/2/a.jsonl",
        f"{root}/{dataset}/{uuid4()}/1/a.jsonl",
        f"{root}/{uuid4()}/{task}/1/a.jsonl",
        f"{root}/{task}/2/a.jsonl",
        f"{root}/{uuid4()}/1/a.jsonl",
        f"{root}/{task}/1/../2/a.jsonl",
        f"{root}/{task}/1//a.jsonl",
        f"{root}/{task}/1/",
        f"{root}/{task}/1/..",
        f"s3://other/buffers/{task}/1/a.jsonl",
        f"file://{root.removeprefix('s3://')}/{task}/1/a.jsonl",
    ):
        reply = shared.publish(attempt, **by_uuid(attempt, batch_uri=uri))
        assert (reply.status_code, reply.json()["code"]) == (403, "forbidden"), uri
    assert len(records(shared, attempt)) == 2
    granted = shared.call("/v1/task/credentials", attempt).json()["write_prefixes"]
    assert {f"{root}/{dataset}/{task}/1/", f"{root}/{task}/1/"} <= set(granted)


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
    attempt = buffered(shared).attempt("one")
    reply = shared.publish(attempt, **body)
    assert reply.status_code == 422, reply.text
    assert [e["field"] for e in reply.json()["errors"]] == [field]
    assert records(shared, attempt) == []
