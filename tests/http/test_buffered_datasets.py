"""Buffered datasets: several producers, one dataset, and the sink that writes its rows."""

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from support import queue_tables
from support.data.buffered import SCHEMA, SinkSetup
from support.lifecycle.lifecycle import run_concurrently
from trace_etl.model.storage import hot_table
from trace_etl.queues.pgqueue import PgQueue
from trace_etl.queues.queue import dead_letter_queue
from trace_etl.sink.sink import MAX_TRIES, QUEUE

# --- producers --------------------------------------------------------------------------------


def test_jobs_and_dags_share_one_dataset_and_one_generation(
    sinks: SinkSetup, published: str
) -> None:
    first, second = sinks.producer(published), sinks.producer(published)
    deployed = first.deploy("one", "two")
    other = second.deploy("three")
    places = [deployed["one"], deployed["two"], other["three"]]
    assert len({(d["dataset_uuid"], d["dataset_version"]) for d in places}) == 1
    assert {d["published"] for d in places} == {published}
    producers = sorted(
        [f"{first.name}.one.out", f"{first.name}.two.out", f"{second.name}.three.out"]
    )
    (listed,) = sinks.bench.user.get("/v1/datasets", params={"name": published}).json()["items"]
    assert (listed["producers"], listed["write_mode"]) == (producers, "buffered")
    dataset = sinks.bench.user.get(f"/v1/datasets/{published}").json()
    columns = [(column["name"], column["type"]) for column in dataset["columns"]]
    assert columns == [("id", "string"), ("n", "long")]
    lineage = sinks.bench.user.get(f"/v1/datasets/{published}/lineage").json()
    assert lineage["producers"] == producers
    assert {item["dag"] for item in lineage["up"]} == {first.name, second.name}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"schema": SCHEMA.replace("long", "double")}, "schema.n: double here, long there"),
        ({"schema": "[{name: id, type: string, nullable: false}]"}, "schema.n: missing here"),
        ({"schema": SCHEMA.replace(", nullable: false", "")}, "schema.id"),
        ({"key": "n"}, "unique_key: [n] here, [id] there"),
    ],
    ids=["type", "missing", "nullable", "key"],
)
def test_a_producer_with_another_schema_or_key_is_refused_with_the_field(
    sinks: SinkSetup, published: str, change: dict[str, str], field: str
) -> None:
    first, second = sinks.producer(published), sinks.producer(published)
    first.deploy("one")
    for path in ("/v1/plans", "/v1/dags"):
        reply = sinks.bench.user.post(path, json={"text": second.text("three", **change)})
        assert (reply.status_code, reply.json()["code"]) == (409, "name_taken")
        assert field in reply.json()["detail"]
        assert f"{first.name}.one" in reply.json()["detail"]
    assert first.deploy("one", "two")["two"]["published"] == published


def test_differing_producers_in_one_file_are_refused_with_the_line(
    sinks: SinkSetup, published: str
) -> None:
    text = sinks.producer(published).text("one", "two")
    wrong = "double".join(text.rsplit("long", 1))
    reply = sinks.bench.user.post("/v1/dags", json={"text": wrong})
    assert reply.status_code == 422
    (error,) = reply.json()["errors"]
    assert "in schema.n" in error["message"]
    assert error["line"] == text.count("\n", 0, text.rindex("- {name:")) + 1


def test_of_two_concurrent_deploys_with_different_schemas_one_is_refused(
    sinks: SinkSetup, published: str
) -> None:
    first, second = sinks.producer(published), sinks.producer(published)
    replies = run_concurrently(
        [
            lambda: first.post("one"),
            lambda: second.post("three", schema=SCHEMA.replace("long", "double")),
        ]
    )
    assert sorted(reply.status_code for reply in replies) == [200, 409]
    (refused,) = [reply for reply in replies if reply.status_code == 409]
    assert "schema.n" in refused.json()["detail"]


def test_a_name_cannot_be_buffered_for_only_some_producers(
    sinks: SinkSetup, published: str
) -> None:
    first, second = sinks.producer(published), sinks.producer(published)
    first.deploy("one")
    plain = second.text("three").replace("buffered", "append")
    reply = sinks.bench.user.post("/v1/dags", json={"text": plain})
    assert (reply.status_code, reply.json()["code"]) == (409, "name_taken")
    assert "write_mode: buffered" in reply.json()["detail"]


def test_the_dataset_keeps_its_other_producers_when_one_is_removed(
    sinks: SinkSetup, published: str
) -> None:
    first, second = sinks.producer(published), sinks.producer(published)
    before = first.deploy("one", "two")["one"]
    second.deploy("three")
    first.deploy("two")
    after = second.deploy("three", column="2")
    assert after["three"]["dataset_uuid"] == before["dataset_uuid"]
    (listed,) = sinks.bench.user.get("/v1/datasets", params={"name": published}).json()["items"]
    assert listed["producers"] == sorted([f"{first.name}.two.out", f"{second.name}.three.out"])
    first.deploy()
    (listed,) = sinks.bench.user.get("/v1/datasets", params={"name": published}).json()["items"]
    assert listed["producers"] == [f"{second.name}.three.out"]
    second.deploy()
    assert sinks.bench.user.get(f"/v1/datasets/{published}").status_code == 404
    assert first.deploy("one")["one"]["dataset_uuid"] == before["dataset_uuid"]


def test_a_deploy_or_rollback_of_one_producer_does_not_affect_the_others(
    sinks: SinkSetup, published: str
) -> None:
    first, second = sinks.producer(published), sinks.producer(published)
    before = first.deploy("one")["one"]
    second.deploy("three")
    sinks.publish(second.attempt("three"), [{"id": "theirs", "n": 1}])
    sinks.publish(first.attempt("one"), [{"id": "mine", "n": 1}])
    sinks.drain()
    changed = first.deploy("one", column="2")["one"]
    assert (changed["dataset_uuid"], changed["dataset_version"]) == (
        before["dataset_uuid"],
        before["dataset_version"],
    )
    sinks.bench.live.run(sinks.bench.live.service.swapper.swap_once)
    assert sinks.values(before) == [("mine", 1), ("theirs", 1)]
    reply = sinks.bench.user.post(f"/v1/dags/{first.name}/rollback")
    assert reply.status_code == 200, reply.text
    now = second.deploy("three", "four")["three"]
    assert now["dataset_version"] == before["dataset_version"]


def test_a_rollback_to_another_schema_is_refused_while_others_publish(
    sinks: SinkSetup, published: str
) -> None:
    first, second = sinks.producer(published), sinks.producer(published)
    first.deploy("one", schema=SCHEMA.replace("long", "double"))
    alone = first.deploy("one")["one"]
    second.deploy("three")
    reply = sinks.bench.user.post(f"/v1/dags/{first.name}/rollback")
    assert (reply.status_code, reply.json()["code"]) == (409, "name_taken")
    assert "schema.n" in reply.json()["detail"]
    assert second.deploy("three", "four")["four"]["dataset_version"] == alone["dataset_version"]


WIDER = SCHEMA.replace("]", ", {name: score, type: double}]")


def test_a_new_nullable_column_is_planned_and_added_to_the_rows_that_exist(
    sinks: SinkSetup, published: str
) -> None:
    first, second = sinks.producer(published), sinks.producer(published)
    before = first.deploy("one")["one"]
    second.deploy("three")
    sinks.publish(first.attempt("one"), [{"id": "old", "n": 1}])
    sinks.drain()

    wider = first.text("one", schema=WIDER)
    plan = sinks.bench.user.post("/v1/plans", json={"text": wider}).json()["plan"]
    assert plan["added_columns"] == [{"dataset": published, "column": "score", "type": "double"}]
    assert {job["action"] for job in plan["jobs"]} == {"keep"}
    after = first.deploy("one", schema=WIDER)["one"]
    assert after["dataset_version"] == before["dataset_version"]

    attempt = first.attempt("one", 1)
    names = [column["name"] for column in attempt.output["columns"]]
    assert names == ["id", "n", "score"], "the task does not know the new column"
    sinks.publish(attempt, [{"id": "new", "n": 2, "score": 0.5}])
    # A producer that has not declared the column yet goes on.
    sinks.publish(second.attempt("three", 2), [{"id": "other", "n": 3}])
    sinks.drain()
    with psycopg.connect(sinks.data_dsn) as conn:
        table = hot_table(UUID(before["dataset_uuid"]), UUID(before["dataset_version"]))
        rows = conn.execute(f'SELECT id, n, score FROM "{table}" ORDER BY n').fetchall()
    assert rows == [("old", 1, None), ("new", 2, 0.5), ("other", 3, None)]

    # The other producer must declare it with its next deploy, and a rollback keeps the rows.
    refused = second.post("three", column="2")
    assert refused.status_code in (409, 422)
    assert "score" in refused.text
    assert (
        second.deploy("three", schema=WIDER)["three"]["dataset_version"]
        == before["dataset_version"]
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schema": SCHEMA.replace("long", "double")}, "'n' changes its type from long to double"),
        ({"schema": "[{name: id, type: string, nullable: false}]"}, "'n' is removed"),
        ({"schema": SCHEMA.replace("long}", "long, nullable: false}")}, "'n' becomes not nullable"),
        (
            {"schema": WIDER.replace("double}", "double, nullable: false}")},
            "'score' is new and not nullable, but existing rows have no value",
        ),
        ({"key": "n", "schema": SCHEMA}, "the unique_key changes from [id] to [n]"),
    ],
    ids=["type", "removed", "not null", "new not null", "key"],
)
def test_any_other_change_of_a_dataset_with_rows_is_refused_with_the_reason(
    sinks: SinkSetup, published: str, change: dict[str, str], problem: str
) -> None:
    producer = sinks.producer(published)
    before = producer.deploy("one")["one"]
    sinks.publish(producer.attempt("one"), [{"id": "old", "n": 1}])
    sinks.drain()
    for path in ("/v1/plans", "/v1/dags"):
        refused = sinks.bench.user.post(path, json={"text": producer.text("one", **change)})
        assert refused.status_code == 422, refused.text
        [error] = refused.json()["errors"]
        assert error["message"] == (
            f"{problem}, but {published!r} has rows; only nullable columns can be added. Undo this change, or "
            "publish under another name"
        )
        assert error["line"]
    assert sinks.values(before) == [("old", 1)]


def test_a_job_that_would_consume_its_own_output_is_refused(
    sinks: SinkSetup, published: str
) -> None:
    producer = sinks.producer(published)
    text = producer.text("one", "two").replace(
        "  - name: two\n    operator: sql\n    inputs: [{from: {job: request}}]",
        "  - name: two\n    operator: sql\n    inputs: [{from: {job: one}}]",
    )
    reply = sinks.bench.user.post("/v1/dags", json={"text": text})
    assert reply.status_code == 422
    assert "waits for its own output" in reply.text


# --- the sink ---------------------------------------------------------------------------------


def test_rows_of_all_producers_are_written_and_wake_the_readers(
    sinks: SinkSetup, published: str
) -> None:
    first, second = sinks.producer(published), sinks.producer(published)
    dataset = first.deploy("one")["one"]
    second.deploy("three")
    sinks.bench.user.get(f"/v1/datasets/{published}/changes").raise_for_status()
    reader = f"""
name: r_{uuid4().hex[:12]}
jobs:
  - name: read
    operator: sql
    execution_strategy: PerUpdate
    inputs: [{{from: {{dataset: {published}}}}}]
    outputs: [seen]
    config: {{sql: "SELECT id FROM {published}"}}
"""
    reply = sinks.bench.user.post("/v1/dags", json={"text": reader})
    assert reply.status_code == 200, reply.text
    sinks.publish(first.attempt("one"), [{"id": "a", "n": 1}, {"id": "b"}], record_count=2)
    sinks.publish(second.attempt("three"), [{"id": "b", "n": 2}, {"id": "c", "n": "3"}])
    sinks.drain()
    assert sinks.values(dataset) == [("a", 1), ("b", 2), ("c", 3)]
    tasks = sinks.bench.rows(
        """SELECT cursor_value FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
            WHERE g.name = %s ORDER BY cursor_value""",
        reader.split()[1],
    )
    assert [task["cursor_value"] for task in tasks] == [1, 2]
    changes = sinks.bench.user.get(f"/v1/datasets/{published}/changes").json()["items"]
    assert [(c["kind"], c["start"], c["end"]) for c in changes if c["kind"] != "version"] == [
        ("appended", None, 1),
        ("appended", 2, 2),
    ]
    states = [(b["state"], b["row_count"], b["cursor"]) for b in sinks.batches(published)]
    assert states == [("written", 2, 2), ("written", 2, 1)]


def test_a_redelivered_batch_changes_nothing(sinks: SinkSetup, published: str) -> None:
    producer = sinks.producer(published)
    dataset = producer.deploy("one")["one"]
    attempt = producer.attempt("one")
    sinks.publish(attempt, [{"id": "a", "n": 1}])
    (message,) = sinks.bench.messages(QUEUE)
    sinks.drain()
    before = sinks.rows(dataset)
    sinks.publish(attempt, [{"id": "a", "n": 2}])
    queue_tables.send(sinks.bench.live.dsns.queue, QUEUE, message)
    sinks.drain()
    assert before[0]["n"] == 1
    assert sinks.values(dataset) == [("a", 2)]
    assert [b["cursor"] for b in sinks.batches(published)] == [2, 1]
    events = "SELECT count(*) AS n FROM events WHERE producer_task_id = %s"
    assert sinks.bench.rows(events, attempt.task_id)[0]["n"] == 2


def test_a_batch_is_reported_after_its_sink_died_before_reporting(
    sinks: SinkSetup, published: str
) -> None:
    producer = sinks.producer(published)
    dataset = producer.deploy("one")["one"]
    attempt = producer.attempt("one")
    publish_id = sinks.publish(attempt, [{"id": "a", "n": 1}])
    sinks.write_without_report(publish_id)
    before = sinks.rows(dataset)
    assert sinks.batches(published)[0]["state"] == "waiting"
    sinks.drain()
    assert sinks.rows(dataset) == before
    (batch,) = sinks.batches(published)
    assert (batch["state"], batch["row_count"], batch["cursor"]) == ("written", 1, 1)
    events = "SELECT cursor_value FROM events WHERE producer_task_id = %s"
    assert [e["cursor_value"] for e in sinks.bench.rows(events, attempt.task_id)] == [1]


def test_two_concurrent_sinks_neither_lose_nor_duplicate_rows(
    sinks: SinkSetup, published: str
) -> None:
    producer = sinks.producer(published)
    dataset = producer.deploy("one")["one"]
    attempt = producer.attempt("one")
    for n in range(8):
        sinks.publish(attempt, [{"id": "shared", "n": n}, {"id": f"own-{n}", "n": n}])
    first = sinks.sink.consumer
    other = PgQueue(sinks.bench.live.dsns.queue).consumer([QUEUE], "test:other-sink")
    try:
        both = [replace(sinks.sink, consumer=consumer) for consumer in (first, other)]
        run_concurrently([lambda sink=sink: [sink.write_once() for _ in range(8)] for sink in both])
    finally:
        other.close()
    sinks.drain()
    rows = sinks.values(dataset)
    assert rows == [*((f"own-{n}", n) for n in range(8)), ("shared", 7)]
    assert sorted(b["cursor"] for b in sinks.batches(published)) == list(range(1, 9))


def test_the_later_published_batch_wins_regardless_of_the_write_order(
    sinks: SinkSetup, published: str
) -> None:
    producer = sinks.producer(published)
    dataset = producer.deploy("one")["one"]
    attempt = producer.attempt("one")
    sinks.publish(attempt, [{"id": "a", "n": 1}, {"id": "b", "n": 1}])
    sinks.publish(attempt, [{"id": "a", "n": 2}])
    queue_tables.hide_oldest(sinks.bench.live.dsns.queue, QUEUE)
    sinks.drain()
    sinks.show_hidden_messages()
    sinks.drain()
    assert sinks.values(dataset) == [("a", 2), ("b", 1)]


def test_a_batch_cannot_choose_the_org_of_its_rows(sinks: SinkSetup, published: str) -> None:
    producer = sinks.producer(published)
    dataset = producer.deploy("one")["one"]
    attempt, own = producer.attempt("one"), "00000000-0000-0000-0000-000000000001"
    sinks.publish(attempt, [{"id": "a", "org_id": own}, {"id": "b"}])
    sinks.publish(attempt, [{"id": "c"}, {"id": "d", "org_id": str(uuid4())}])
    sinks.drain()
    assert [r["org_id"] for r in sinks.rows(dataset)] == [own, own]
    (failed,) = sinks.batches(published, state="failed")
    assert failed["error_message"].startswith("line 2: 'org_id' is another organisation's")


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "json": (b'{"id": "a"}\n{"id"', {}, "line 2 is not a JSON object"),
    "list": (b"[1]", {}, "line 1 is not a JSON object"),
    "unknown": ([{"id": "a", "m": 1}], {}, "line 1: the schema has no column 'm'"),
    "key": ([{"n": 1}], {}, "line 1: 'id' is missing"),
    "type": ([{"id": "a", "n": "one"}], {}, "line 1: 'n' must be long, not \"one\""),
    "bool": ([{"id": "a", "n": True}], {}, "'n' must be long, not true"),
    "large": ([{"id": "a", "n": 2**63}], {}, "'n' must be long"),
    "count": ([{"id": "a"}], {"record_count": 2}, "record_count is 2, but the batch has 1 rows"),
    "kind": ([{"id": "a"}], {"content_type": "text/csv"}, "content_type 'text/csv'"),
    "size": (b" " * (16 * 2**20 + 1), {}, "larger than 16777216 bytes"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_a_bad_batch_fails_with_the_reason_and_does_not_affect_others(
    sinks: SinkSetup, published: str, case: str
) -> None:
    content, fields, reason = BAD[case]
    producer = sinks.producer(published)
    dataset = producer.deploy("one")["one"]
    attempt = producer.attempt("one")
    bad = sinks.publish(attempt, content, **fields)
    sinks.publish(attempt, [{"id": "good", "n": 1}])
    sinks.drain()
    assert sinks.values(dataset) == [("good", 1)]
    (failed,) = sinks.batches(published, state="failed")
    assert (failed["publish_id"], failed["error_code"]) == (bad, "bad_batch")
    assert reason in failed["error_message"]
    assert bad in [m["publish_id"] for m in sinks.bench.messages(dead_letter_queue(QUEUE))]


def test_a_missing_batch_fails_after_ten_receives_and_can_be_retried(
    sinks: SinkSetup, published: str
) -> None:
    producer = sinks.producer(published)
    dataset = producer.deploy("one")["one"]
    attempt = producer.attempt("one")
    publish_id = sinks.publish(attempt, [{"id": "a", "n": 1}])
    (batch,) = sinks.batches(published)
    root = sinks.bench.live.objects
    path = root / batch["batch_uri"].removeprefix("s3://")
    hidden = path.rename(path.with_suffix(".hidden"))
    for _ in range(MAX_TRIES):
        assert sinks.batches(published)[0]["state"] == "waiting"
        sinks.drain()
        sinks.show_hidden_messages()
    (failed,) = sinks.batches(published, state="failed")
    assert failed["error_code"] == "batch_missing"
    assert publish_id not in [m["publish_id"] for m in sinks.bench.messages(QUEUE)]
    hidden.rename(path)
    reply = sinks.bench.user.post(f"/v1/batches/{publish_id}/retry")
    assert reply.status_code == 200, reply.text
    sinks.bench.live.drain()
    sinks.drain()
    assert sinks.values(dataset) == [("a", 1)]
    reply = sinks.bench.user.post(f"/v1/batches/{publish_id}/retry")
    assert (reply.status_code, reply.json()["code"]) == (409, "conflict")


def test_a_batch_outside_the_attempts_prefix_is_forbidden(sinks: SinkSetup, published: str) -> None:
    producer = sinks.producer(published)
    producer.deploy("one")
    mine, other = producer.attempt("one"), producer.attempt("one", 1)
    ref = other.output["storage_ref"]
    for uri in (
        f"s3://{ref['bucket']}/{ref['prefix']}x.jsonl",
        f"s3://{mine.output['storage_ref']['bucket']}/{mine.output['storage_ref']['prefix']}../x",
        "s3://trace/cold/x.jsonl",
    ):
        target = {"dataset_uuid": mine.output["dataset_uuid"], "batch_uri": uri}
        reply = sinks.bench.publish(mine, **target)
        assert (reply.status_code, reply.json()["code"]) == (403, "forbidden"), uri
