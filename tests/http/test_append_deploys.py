"""Deploys of jobs that append rows for ticks: the rows of past ticks cannot be made again."""

from typing import Any
from uuid import uuid4

import httpx

from support.lifecycle.lifecycle import Bench

DAG = """
name: {name}
jobs:
  - {{name: minute, source: {{kind: cron, schedule: "* * * * *"}}, outputs: [ticks]}}
  - name: counts
    operator: sql
    inputs: [{{from: {{job: minute}}}}]
    outputs: [counts]
    update_strategy: append
    unique_key: [at]
    config: {{sql: "SELECT :scheduled_time AS at{more}"}}
publish:
  - {{name: {name}_counts, from: {{job: counts}}, storage: postgres}}
"""


def deploy(bench: Bench, name: str, more: str = "", **fields: Any) -> httpx.Response:
    text = DAG.format(name=name, more=more)
    base = bench.user.post("/v1/plans", json={"text": text}).json()["base_version"]
    return bench.user.post("/v1/dags", json={"text": text, "base_version": base, **fields})


def test_a_deploy_that_loses_rows_of_past_ticks_is_refused_until_that_is_allowed(
    shared: Bench,
) -> None:
    name = f"ticks_{uuid4().hex[:12]}"
    assert deploy(shared, name).status_code == 200
    assert deploy(shared, name, ", 1 AS n").status_code == 200, "no rows can be lost yet"

    tick = {"dag": name, "job": "minute", "scheduled_time": "2026-01-01T00:00:00Z"}
    assert shared.user.post("/v1/triggers", json=tick).status_code == 200
    shared.live.drain()
    query = {"dag": name, "job": "counts", "status": "Queued"}
    (task,) = shared.user.get("/v1/tasks", params=query).json()["items"]
    attempt = shared.claimed(task["task_id"])
    assert shared.complete(attempt, events=[attempt.event()]).status_code == 200

    text = DAG.format(name=name, more=", 2 AS n")
    plan = shared.user.post("/v1/plans", json={"text": text}).json()["plan"]
    assert plan["losing_rows"] == ["counts"]
    refused = deploy(shared, name, ", 2 AS n")
    assert (refused.status_code, refused.json()["code"]) == (409, "rows_lost")
    assert "write_mode: buffered" in refused.json()["detail"]
    assert deploy(shared, name, ", 2 AS n", allow_breaking=True).status_code == 200
