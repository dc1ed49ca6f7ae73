"""Certificates of partitions: stored by the commit, kept by a compaction, refused if rows are lost."""

import json
from typing import Any
from uuid import uuid4

import httpx

from support.lifecycle.lifecycle import Attempt, Bench

_DAG = """
name: {name}
jobs:
  - {{name: request, activation: source, source: {{kind: manual}}, outputs: [ranges]}}
  - {{name: split, operator: range_splitter, inputs: [{{from: {{job: request}}}}], outputs: [ranges],
     config: {{size: 10}}}}
  - {{name: work, operator: sql, inputs: [{{from: {{job: split}}}}], outputs: [out],
     config: {{sql: "SELECT 1 FROM ranges"}}}}
  - {{name: wide, operator: range_aggregator, inputs: [{{from: {{job: work}}}}], outputs: [ranges],
     config: {{size: 20}}}}
  - {{name: compact, operator: parquet_compact, outputs: [out], config: {{size: 20}},
     inputs: [{{from: {{job: wide}}}}, {{from: {{job: work}}}}]}}
publish:
  - {{name: {name}_small, from: {{job: work}}}}
  - {{name: {name}_large, from: {{job: compact}}}}
"""


def block_hash(number: int) -> str:
    return f"0x{number:064x}"


def publish(bench: Bench, attempt: Attempt, row_sum: int, **changes: Any) -> httpx.Response:
    """Complete an attempt with a marker that has hashes and these changes."""
    published = bench.write_output(attempt, content=row_sum)
    path = bench.prefix(attempt) / "_SUCCESS"
    marker = json.loads(path.read_text())
    marker["files"][0]["sha256"] = "ab" * 32
    path.write_text(json.dumps({**marker, **changes}))
    return bench.complete(attempt, datasets_published=[published])


def verified(start: int, end: int, level: str) -> dict[str, Any]:
    return {
        "start": start,
        "end": end,
        "level": level,
        "checks": ["header_hash", "links", *(["receipts_root"] if level == "roots" else [])],
        "rules_version": 1,
        "endpoints": [f"node-{start}:8545"],
        "first_parent_hash": block_hash(start - 1) if start else "0x" + "00" * 32,
        "first_hash": block_hash(start),
        "last_hash": block_hash(end),
    }


def compaction(bench: Bench, name: str) -> Attempt:
    """Claim the task that compacts 0-19; tasks of single partitions compact nothing."""
    bench.live.drain()
    query = {"dag": name, "job": "compact", "status": "Queued"}
    items = bench.user.get("/v1/tasks", params=query).json()["items"]
    (task_id,) = [item["task_id"] for item in items if item["partition_key"] == "0-19"]
    return bench.claimed(task_id)


def publish_inputs(bench: Bench, name: str, *changes: dict[str, Any]) -> None:
    """Deploy the DAG and publish two partitions of ten blocks, with these changes of their markers."""
    reply = bench.user.post("/v1/dags", json={"text": _DAG.format(name=name)})
    assert reply.status_code == 200, reply.text
    body = {"dag": name, "job": "request", "start": 0, "end": 19}
    assert bench.user.post("/v1/triggers", json=body).status_code == 200
    bench.live.drain()
    query = {"dag": name, "job": "work", "status": "Queued"}
    for item in bench.user.get("/v1/tasks", params=query).json()["items"]:
        attempt = bench.claimed(item["task_id"])
        start = attempt.scope["start"]
        proof = verified(start, start + 9, "roots" if start else "bloom")
        marker = {"verified": proof, **changes[start // 10]}
        assert publish(bench, attempt, 2**256 - 1 - start, **marker).status_code == 200


def test_a_compaction_of_partitions_with_different_columns_keeps_the_verification(
    shared: Bench,
) -> None:
    name = f"c_{uuid4().hex[:12]}"
    every = [{"name": name, "type": "bigint"} for name in ("n", "added")]
    publish_inputs(shared, name, {"schema": every[:1]}, {"schema": every})
    attempt = compaction(shared, name)
    narrow, wide = 2**256 - 1, 2**256 - 11

    def send(narrow: int, wide: int) -> httpx.Response:
        sums = [
            {"columns": ["added", "n"], "row_sum": f"{wide:064x}"},
            {"columns": ["n"], "row_sum": f"{narrow:064x}"},
        ]
        return publish(shared, attempt, 77, schema=every, row_sums=sums)

    for wrong in ((narrow - 1, wide), (narrow, wide - 1), (wide, narrow)):
        refused = send(*wrong)
        assert (refused.status_code, refused.json()["code"]) == (409, "rows_changed")
    assert send(narrow, wide).status_code == 200
    [large] = shared.user.get(f"/v1/datasets/{name}_large/certificates").json()["items"]
    assert large["verified"]["level"] == "bloom" and large["verified"]["last_hash"] == block_hash(
        19
    )


def test_a_compaction_keeps_the_verification_and_must_keep_every_row(shared: Bench) -> None:
    name = f"c_{uuid4().hex[:12]}"
    # The sums of both partitions are larger than 2^256 together.
    publish_inputs(shared, name, {}, {})

    small = shared.user.get(f"/v1/datasets/{name}_small/certificates").json()
    assert [c["partition_key"] for c in small["items"]] == ["0-9", "10-19"]
    first = small["items"][0]
    assert first["content_hash"] == f"rows.v1:{'f' * 64}"
    assert first["files"][0]["sha256"] == "ab" * 32 and first["verified"]["level"] == "bloom"
    assert first["definition"]["operator"] == "sql" and first["definition"]["dag_version"]
    only = shared.user.get(f"/v1/datasets/{name}_small/certificates", params={"range": "12-13"})
    assert [c["partition_key"] for c in only.json()["items"]] == ["10-19"]

    attempt = compaction(shared, name)
    refused = publish(shared, attempt, 2**256 - 12 + 1)
    assert (refused.status_code, refused.json()["code"]) == (409, "rows_changed")
    assert "0-19" in refused.json()["detail"]
    assert publish(shared, attempt, 2**256 - 12).status_code == 200

    [large] = shared.user.get(f"/v1/datasets/{name}_large/certificates").json()["items"]
    assert large["verified"]["level"] == "bloom"  # of its least verified input
    assert large["verified"]["checks"] == ["header_hash", "links"]
    assert large["verified"]["endpoints"] == ["node-0:8545", "node-10:8545"]
    assert large["verified"]["last_hash"] == block_hash(19)
    inputs = {(i["dataset"], i["partition_key"]): i["content_hash"] for i in large["inputs"]}
    assert inputs[f"{name}_small", "0-9"] == first["content_hash"]
    assert inputs[f"{name}_small", "10-19"] == small["items"][1]["content_hash"]
