"""Blocks that were not final are marked and read again: the same rows are confirmed, others replaced."""

from typing import Any
from uuid import uuid4

import httpx

from support.data.delivery_consumer import DeliveryConsumer
from support.lifecycle.lifecycle import Attempt, Bench, rows_hash

_DAG = """
name: {name}
jobs:
  - {{name: request, activation: source, source: {{kind: manual}}, outputs: [ranges]}}
  - {{name: split, operator: range_splitter, inputs: [{{from: {{job: request}}}}], outputs: [ranges],
     config: {{size: 10}}}}
  - {{name: ingest, operator: cryo_ingest, inputs: [{{from: {{job: split}}}}], outputs: [logs],
     config: {{finality: provisional}}}}
  - {{name: derived, operator: sql, inputs: [{{from: {{job: ingest}}}}], outputs: [out],
     config: {{sql: "SELECT block_number FROM logs"}}}}
publish:
  - {{name: {name}_logs, from: {{job: ingest}}}}
  - {{name: {name}_out, from: {{job: derived}}}}
"""


def queued(bench: Bench, name: str, job: str) -> list[dict[str, Any]]:
    bench.live.drain()
    query = {"dag": name, "job": job, "status": "Queued"}
    items = bench.user.get("/v1/tasks", params=query).json()["items"]
    return sorted(items, key=lambda item: item["partition_key"] or "")


def publish(
    bench: Bench, task: dict[str, Any], rows: int, fork: str, *, provisional: bool
) -> httpx.Response:
    attempt = bench.claimed(task["task_id"])
    published = bench.write_output(attempt, content=rows)
    bench.add_verification(attempt, fork, provisional=provisional)
    return bench.complete(attempt, datasets_published=[published], events=[attempt.event()])


def derive(bench: Bench, name: str, rows: int) -> Attempt:
    [task] = queued(bench, name, "derived")
    attempt = bench.claimed(task["task_id"])
    published = bench.write_output(attempt, content=rows)
    reply = bench.complete(attempt, datasets_published=[published], events=[attempt.event()])
    assert reply.status_code == 200, reply.text
    return attempt


def start(bench: Bench, *, end: int = 9) -> str:
    name = f"v_{uuid4().hex[:12]}"
    reply = bench.user.post("/v1/dags", json={"text": _DAG.format(name=name)})
    assert reply.status_code == 200, reply.text
    body = {"dag": name, "job": "request", "start": 0, "end": end}
    assert bench.user.post("/v1/triggers", json=body).status_code == 200
    return name


def certificate(bench: Bench, name: str) -> dict[str, Any]:
    reply = bench.user.get(f"/v1/datasets/{name}_logs/certificates")
    assert reply.status_code == 200, reply.text
    [item] = reply.json()["items"]
    return item


def test_final_blocks_are_not_read_again(shared: Bench) -> None:
    name = start(shared)
    [task] = queued(shared, name, "ingest")
    assert publish(shared, task, 7, "aa", provisional=False).status_code == 200
    assert not certificate(shared, name)["verified"]["provisional"]
    assert queued(shared, name, "ingest") == []


def test_the_same_rows_are_confirmed_and_nothing_else_happens(shared: Bench) -> None:
    name = start(shared)
    consumer = DeliveryConsumer(shared, f"{name}_logs")
    [task] = queued(shared, name, "ingest")
    assert publish(shared, task, 7, "aa", provisional=True).status_code == 200
    before = certificate(shared, name)
    assert before["verified"]["provisional"]
    derive(shared, name, 3)
    consumer.catch_up()

    [recheck] = queued(shared, name, "ingest")
    assert publish(shared, recheck, 7, "aa", provisional=False).status_code == 200
    after = certificate(shared, name)
    assert not after["verified"]["provisional"]
    assert after["task_id"] == before["task_id"] == task["task_id"]
    assert consumer.catch_up() == []
    assert queued(shared, name, "ingest") == queued(shared, name, "derived") == []


def test_the_task_that_reads_again_waits_for_final_blocks(shared: Bench) -> None:
    name = start(shared)
    [task] = queued(shared, name, "ingest")
    assert publish(shared, task, 7, "aa", provisional=True).status_code == 200
    [recheck] = queued(shared, name, "ingest")
    assert shared.claimed(recheck["task_id"]).claimed["task"]["parameters"]["recheck"] is True


def test_orphaned_blocks_are_replaced_with_everything_made_from_them(shared: Bench) -> None:
    name = start(shared)
    consumer = DeliveryConsumer(shared, f"{name}_logs")
    [task] = queued(shared, name, "ingest")
    assert publish(shared, task, 7, "aa", provisional=True).status_code == 200
    derive(shared, name, 3)
    consumer.catch_up()

    [recheck] = queued(shared, name, "ingest")
    assert publish(shared, recheck, 8, "bb", provisional=False).status_code == 200
    [change] = consumer.catch_up()
    assert (change["kind"], change["reason"]) == ("replaced", "reorganisation")
    assert (change["old_hash"], change["new_hash"]) == (rows_hash(7), rows_hash(8))
    assert derive(shared, name, 4).scope["start"] == 0
    assert queued(shared, name, "ingest") == []
    marks = shared.user.get(f"/v1/datasets/{name}_logs/map").json()["invalidations"]
    assert [(mark["start"], mark["is_reorganisation"]) for mark in marks] == [(0, True)]


def test_neighbours_of_provisional_blocks_may_be_of_another_fork_until_they_are_read_again(
    shared: Bench,
) -> None:
    name = start(shared, end=19)
    first, second = queued(shared, name, "ingest")
    assert publish(shared, first, 7, "aa", provisional=True).status_code == 200
    assert publish(shared, second, 8, "bb", provisional=False).status_code == 200
    [recheck] = queued(shared, name, "ingest")
    refused = publish(shared, recheck, 7, "aa", provisional=False)
    assert refused.status_code == 409 and refused.json()["code"] == "chain_mismatch"


def test_provisional_blocks_must_fit_final_neighbours(shared: Bench) -> None:
    name = start(shared, end=19)
    first, second = queued(shared, name, "ingest")
    assert publish(shared, first, 7, "aa", provisional=False).status_code == 200
    assert publish(shared, second, 8, "bb", provisional=True).status_code == 409
