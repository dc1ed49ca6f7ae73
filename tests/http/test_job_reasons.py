"""The reason why a job runs nothing: an empty queue, a pause, or unfinished upstream work."""

from typing import Any
from uuid import uuid4

import pytest

from support.lifecycle.lifecycle import Bench

_DAG = """
name: {name}
jobs:
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
  - name: first
    operator: range_splitter
    runtime: ecs_python
    inputs: [{{from: {{job: request}}}}]
    outputs: [parts]
    max_attempts: 1
  - name: second
    operator: range_splitter
    runtime: ecs_python
    inputs: [{{from: {{job: first}}}}]
    outputs: [pieces]
  - name: third
    operator: range_splitter
    runtime: ecs_python
    inputs: [{{from: {{job: second}}}}]
    outputs: [crumbs]
"""


@pytest.fixture
def dag(shared: Bench) -> str:
    name = f"t_{uuid4().hex[:12]}"
    reply = shared.user.post("/v1/dags", json={"text": _DAG.format(name=name)})
    assert reply.status_code == 200, reply.text
    return name


def job(bench: Bench, dag: str, name: str) -> dict[str, Any]:
    reply = bench.user.get(f"/v1/jobs/{dag}/{name}")
    assert reply.status_code == 200, reply.text
    return reply.json()


def work_of(bench: Bench, dag: str, name: str) -> list[str]:
    body = {"dag": dag, "job": "request", "start": 0, "end": 9}
    assert bench.user.post("/v1/triggers", json=body).status_code == 200
    bench.live.drain()
    query = {"dag": dag, "job": name, "status": "Queued"}
    items = bench.user.get("/v1/tasks", params=query).json()["items"]
    return [item["task_id"] for item in items]


def test_a_job_without_upstream_work_has_no_reason(shared: Bench, dag: str) -> None:
    shown = job(shared, dag, "third")
    assert (shown["reason"], shown["upstream"]) == (None, [])


def test_a_job_names_the_unfinished_upstream_work(shared: Bench, dag: str) -> None:
    (task_id,) = work_of(shared, dag, "first")
    assert job(shared, dag, "first")["reason"].startswith("1 task queued")
    assert job(shared, dag, "third")["reason"] == "waiting for upstream: first (1 task queued)"
    shared.claimed(task_id)
    assert job(shared, dag, "first")["reason"] is None
    shown = job(shared, dag, "third")
    assert shown["reason"] == "waiting for upstream: first (1 task running)"
    (above,) = shown["upstream"]
    assert (above["job"], above["distance"], above["running"]) == ("first", 2, 1)


def test_a_job_names_the_upstream_failure_it_waits_for(shared: Bench, dag: str) -> None:
    (task_id,) = work_of(shared, dag, "first")
    assert shared.complete(shared.claimed(task_id), "Failed").status_code == 200
    reason = job(shared, dag, "second")["reason"]
    assert reason == "waiting for upstream: first (1 task failed permanently)"


def test_pauses_of_the_job_and_of_its_upstream_are_reported(shared: Bench, dag: str) -> None:
    body = {"dag": dag, "job": "first", "reason": "repairs", "tier": "normal"}
    assert shared.user.post("/v1/pauses", json=body).status_code == 200
    assert job(shared, dag, "first")["reason"].startswith("paused by local (repairs)")
    assert "first (paused by local (repairs)" in job(shared, dag, "second")["reason"]


def test_a_job_names_an_upstream_job_of_another_dag(shared: Bench, dag: str) -> None:
    published = f"{dag}_pieces"
    text = _DAG.format(name=dag) + f"publish: [{{name: {published}, from: {{job: second}}}}]\n"
    assert shared.user.post("/v1/dags", json={"text": text}).status_code == 200
    reader = f"""
name: {dag}_reader
jobs:
  - name: read
    operator: range_splitter
    runtime: ecs_python
    inputs: [{{from: {{dataset: {published}}}}}]
    outputs: [seen]
"""
    reply = shared.user.post("/v1/dags", json={"text": reader})
    assert reply.status_code == 200, reply.text
    assert len(work_of(shared, dag, "first")) == 1
    reason = job(shared, f"{dag}_reader", "read")["reason"]
    assert reason == f"waiting for upstream: {dag}.first (1 task queued)"
