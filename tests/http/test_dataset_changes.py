"""The delivery log: what changed in a dataset, why, in an order that never changes behind a cursor."""

import ssl
from random import Random
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from support.dags.dags import HOT_AND_COMPACTED
from support.data.delivery_consumer import Copy, DeliveryConsumer
from support.lifecycle.lifecycle import Attempt, Bench, rows_hash, run_concurrently
from trace_etl.client.client import Client
from trace_etl.client.result_stream import ResultConnections
from trace_etl.client.stack_client import StackClient

_DAG = """
name: {name}
jobs:
  - {{name: request, activation: source, source: {{kind: manual}}, outputs: [ranges]}}
  - {{name: split, operator: range_splitter, inputs: [{{from: {{job: request}}}}], outputs: [ranges],
     config: {{size: 10}}}}
  - {{name: work, operator: sql, inputs: [{{from: {{job: split}}}}], outputs: [out],
     config: {{sql: "SELECT 1 FROM ranges"}}}}
  - {{name: total, operator: sql, inputs: [{{from: {{job: work}}}}], outputs: [out],
     execution_strategy: WholeDataset, config: {{sql: "SELECT 1 FROM out"}}}}
publish:
  - {{name: {name}_out, from: {{job: work}}}}
  - {{name: {name}_total, from: {{job: total}}}}
"""


def deploy(bench: Bench, text: str) -> str:
    name = f"v_{uuid4().hex[:12]}"
    reply = bench.user.post("/v1/dags", json={"text": text.format(name=name)})
    assert reply.status_code == 200, reply.text
    return name


def queued(bench: Bench, name: str, job: str) -> list[str]:
    bench.live.drain()
    query = {"dag": name, "job": job, "status": "Queued"}
    items = bench.user.get("/v1/tasks", params=query).json()["items"]
    return [item["task_id"] for item in sorted(items, key=lambda item: item["partition_key"] or "")]


def publish(bench: Bench, task_id: str, rows: int) -> Attempt:
    """Complete a task with rows that have this number as their hash and sum."""
    attempt = bench.claimed(task_id)
    published = bench.write_output(attempt, content=rows)
    reply = bench.complete(attempt, datasets_published=[published], events=[attempt.event()])
    assert reply.status_code == 200, reply.text
    return attempt


def describe(changes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(c["kind"], c["reason"], c["partition_key"] or c["end"]) for c in changes]


def trigger(bench: Bench, name: str, start: int, end: int) -> None:
    body = {"dag": name, "job": "request", "start": start, "end": end}
    assert bench.user.post("/v1/triggers", json=body).status_code == 200


def test_a_change_has_its_scope_its_reason_and_the_hashes_before_and_after(shared: Bench) -> None:
    name = deploy(shared, _DAG)
    consumer = DeliveryConsumer(shared, f"{name}_out")
    total = DeliveryConsumer(shared, f"{name}_total")
    trigger(shared, name, 0, 19)
    first, second = queued(shared, name, "work")
    publish(shared, first, 7)
    publish(shared, second, 8)
    changes = consumer.catch_up()
    assert describe(changes) == [
        ("version", "deploy", None),
        ("published", "new", "0-9"),
        ("published", "new", "10-19"),
    ]
    assert [(c["old_hash"], c["new_hash"]) for c in changes[1:]] == [
        (None, rows_hash(7)),
        (None, rows_hash(8)),
    ]
    (refresh,) = queued(shared, name, "total")
    publish(shared, refresh, 15)
    assert describe(total.catch_up())[1:] == [("published", "refresh", "all")]

    # The same rows again are not a change, other rows are.
    path = f"/v1/datasets/{name}_out/invalidations"
    for rows in (7, 9):
        body = {"partition_key": "0-9", "rebuild": True}
        assert shared.user.post(path, json=body).status_code == 200
        publish(shared, queued(shared, name, "work")[0], rows)
    (change,) = consumer.catch_up()
    assert describe([change]) == [("replaced", "repair", "0-9")]
    assert (change["old_hash"], change["new_hash"]) == (rows_hash(7), rows_hash(9))
    publish(shared, queued(shared, name, "total")[0], 17)
    assert describe(total.catch_up()) == [("replaced", "refresh", "all")]
    assert total.copy == total.read() == {"all": rows_hash(17)}
    assert shared.user.post(path, json={"start": 12, "end": 13}).status_code == 200
    assert describe(consumer.catch_up()) == [("invalidated", "repair", 13)]
    assert consumer.copy == consumer.read()
    cursors = [int(c["cursor"].partition("-")[0]) for c in consumer.changes]
    assert cursors == list(range(1, 6))


def test_a_partition_that_covers_others_with_the_same_rows_is_not_a_change(shared: Bench) -> None:
    name = deploy(shared, _DAG)
    consumer = DeliveryConsumer(shared, f"{name}_out")
    trigger(shared, name, 0, 19)
    for rows, task_id in enumerate(queued(shared, name, "work"), start=7):
        publish(shared, task_id, rows)
    consumer.catch_up()
    for rows, expected in ((15, []), (16, [("replaced", "rebuild", "0-19")])):
        # A task for both ranges, as after a change of the size upstream.
        shared.rows(
            """SELECT task_id FROM create_tasks(ARRAY(
                   SELECT new_task(t.org_id, t.job_id, t.revision_id, t.runtime, false, %s, 3, NULL, 60,
                                   60, t.dataset_uuid, t.dataset_version, '0-19', 0, 19)
                     FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
                    WHERE g.name = %s AND j.name = 'work' LIMIT 1))""",
            f"wide:{rows}",
            name,
        )
        publish(shared, queued(shared, name, "work")[0], rows)
        assert describe(consumer.catch_up()) == expected


def test_a_transaction_that_commits_late_gets_a_later_number(shared: Bench) -> None:
    name = deploy(shared, _DAG)
    consumer = DeliveryConsumer(shared, f"{name}_out")
    consumer.catch_up()
    (dataset,) = shared.rows(
        "SELECT dataset_uuid, dataset_version FROM publications JOIN datasets USING (dataset_uuid)"
        " WHERE name = %s",
        f"{name}_out",
    )
    insert = (
        "INSERT INTO deliveries (dataset_uuid, dataset_version, kind, partition_key)"
        " VALUES (%s, %s, 'published', %s)"
    )
    ids = tuple(dataset.values())
    dsn = shared.live.dsns.state
    with psycopg.connect(dsn) as slow, psycopg.connect(dsn) as broken:
        slow.execute(insert, (*ids, "slow"))
        broken.execute(insert, (*ids, "broken"))
        with psycopg.connect(dsn) as quick:
            quick.execute(insert, (*ids, "quick"))
        assert [c["partition_key"] for c in consumer.catch_up()] == ["quick"]
        broken.rollback()
        assert consumer.catch_up() == []
        slow.commit()
        assert [c["partition_key"] for c in consumer.catch_up()] == ["slow"]
    assert consumer.catch_up() == []
    assert [int(c["cursor"].partition("-")[0]) for c in consumer.changes] == [1, 2, 3]


def test_concurrent_commits_and_readers_give_every_change_once(shared: Bench) -> None:
    name = deploy(shared, _DAG)
    trigger(shared, name, 0, 119)
    tasks = queued(shared, name, "work")
    consumers = [DeliveryConsumer(shared, f"{name}_out") for _ in range(2)]

    def read(consumer: DeliveryConsumer) -> None:
        while len(consumer.changes) < 1 + len(tasks):
            consumer.catch_up()

    halves = [tasks[n::3] for n in range(3)]
    commits = [lambda half=half: [publish(shared, t, 1) for t in half] for half in halves]
    reads = [lambda c=consumer: read(c) for consumer in consumers]
    run_concurrently([*commits, *reads])
    for consumer in consumers:
        assert consumer.copy == consumer.read()
        keys = [c["partition_key"] for c in consumer.changes[1:]]
        assert len(set(keys)) == len(keys) == len(tasks)
    assert consumers[0].changes == consumers[1].changes


def test_a_reader_with_a_cursor_older_than_the_log_must_read_everything_again(alone: Bench) -> None:
    """Alone, because each pass of the retention reads a batch from the start of the log."""
    name = deploy(alone, _DAG)
    path = f"/v1/datasets/{name}_out/changes"
    start = alone.user.get(path).json()["items"][0]["cursor"]
    trigger(alone, name, 0, 9)
    publish(alone, queued(alone, name, "work")[0], 1)
    head = alone.user.get(path, params={"since": "now"}).json()
    assert head["items"] == [] and head["cursor"] > start
    alone.rows(
        "UPDATE deliveries SET changed_at = '2020-01-01' WHERE dataset_uuid ="
        " (SELECT dataset_uuid FROM publications WHERE name = %s)",
        f"{name}_out",
    )
    retention = alone.live.service.retention
    while alone.rows("SELECT 1 FROM deliveries WHERE changed_at < '2021-01-01'"):
        alone.live.run(retention.delete_once)
    reply = alone.user.get(path, params={"since": start})
    assert (reply.status_code, reply.json()["code"]) == (410, "cursor_expired")
    assert "read the whole dataset" in reply.json()["detail"]
    assert reply.json()["cursor"] == head["cursor"]
    assert reply.json()["dataset_version"] == head["dataset_version"]
    assert alone.user.get(path, params={"since": head["cursor"]}).json()["items"] == []
    assert alone.user.get(path, params={"since": "7"}).status_code == 422
    other = head["cursor"].partition("-")[0] + "-00000000"
    assert "restored" in alone.user.get(path, params={"since": other}).json()["detail"]
    late = "9" + head["cursor"]
    assert alone.user.get(path, params={"since": late}).status_code == 410
    url = str(alone.user.base_url).rstrip("/")
    results = ResultConnections(url, {}, ssl.create_default_context())
    client = Client(StackClient(alone.user, url, url, results))
    assert client.changes_cursor(f"{name}_out") == head["cursor"]
    assert list(client.changes(f"{name}_out")) == []
    trigger(alone, name, 10, 19)
    publish(alone, queued(alone, name, "work")[0], 1)
    (change,) = client.changes(f"{name}_out", head["cursor"])
    assert (change.kind, change.partition_key) == ("published", "10-19")


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_of_a_hot_table_follows_the_chain_through_reorganisations(
    shared: Bench, seed: int
) -> None:
    random = Random(seed)
    name = deploy(shared, HOT_AND_COMPACTED)
    shared.live.run(shared.live.service.sources.supervise_once)
    query = {"dag": name, "job": "follow", "status": "Queued"}
    (task,) = shared.user.get("/v1/tasks", params=query).json()["items"]
    attempt = shared.claimed(task["task_id"])
    table: Copy = {}
    consumers = [
        DeliveryConsumer(shared, f"{name}_{kind}", read_table=lambda: dict(table))
        for kind in ("hot", "all")
    ]
    for step in range(25):
        head = len(table) - 1
        rewrites: list[dict[str, Any]] = []
        if table and random.random() < 0.4:
            first = random.randrange(max(0, head - 5), head + 1)
            for block in range(first, head + 1):
                del table[str(block)]
            output = attempt.event(cursor=0)
            rewrite = {"kind": "row_range", "start": first, "end": head}
            scope = {key: output[key] for key in ("dataset_uuid", "dataset_version")}
            reason = {"reason": "the chain changed", "is_reorganisation": True}
            rewrites.append({**scope, **rewrite, **reason, "key": f"rewrite-{step}"})
        for block in range(len(table), len(table) + random.randrange(1, 5)):
            table[str(block)] = f"{step}"
        event = attempt.event(cursor=len(table) - 1)
        reply = shared.events(attempt, event, invalidations=rewrites)
        assert reply.status_code == 200, reply.text
        for consumer in consumers:
            changes = consumer.catch_up()
            assert consumer.copy == table, (step, changes)
            assert {c["kind"] for c in changes} <= {"version", "appended", "replaced"}
            assert ("reorganisation" in {c["reason"] for c in changes}) == bool(rewrites)
    assert not any(consumer.resets for consumer in consumers)


def test_a_compaction_that_keeps_rows_is_not_a_change(shared: Bench) -> None:
    name = deploy(shared, HOT_AND_COMPACTED)
    shared.live.run(shared.live.service.sources.supervise_once)
    follower = shared.claimed(queued(shared, name, "follow")[0])
    consumer = DeliveryConsumer(shared, f"{name}_all", read_table=dict)
    consumer.catch_up()
    assert shared.events(follower, follower.event(cursor=19)).status_code == 200
    assert describe(consumer.catch_up()) == [("appended", "new", 19)]

    def compact(rows: int) -> list[tuple[Any, ...]]:
        """Compact every range that waits. Tasks up to a cursor have no range to compact."""
        for task_id in queued(shared, name, "compact"):
            if shared.row(task_id)["partition_key"] is not None:
                publish(shared, task_id, rows)
        return describe(consumer.catch_up())

    assert compact(7) == []  # readers saw these rows in the table
    certificates = shared.user.get(f"/v1/datasets/{name}_all/certificates").json()["items"]
    assert [c["partition_key"] for c in certificates] == ["0-9", "10-19"]
    body = {"partition_key": "0-9", "rebuild": True}
    path = f"/v1/datasets/{name}_all/invalidations"
    for rows, expected in ((7, []), (9, [("replaced", "repair", "0-9")])):
        assert shared.user.post(path, json=body).status_code == 200
        assert compact(rows) == expected
    assert shared.events(follower, follower.event(cursor=29)).status_code == 200
    assert describe(consumer.catch_up()) == [("appended", "new", 29)]
    assert compact(7) == []
