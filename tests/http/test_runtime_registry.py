"""The registry of runtimes over HTTP: its list, refused deploys, and the queue of a runtime."""

from support import queue_tables
from support.lifecycle.lifecycle import Bench


def test_the_registry_is_listed_with_limits_and_workers(shared: Bench) -> None:
    items = {item["name"]: item for item in shared.user.get("/v1/runtimes").json()["items"]}
    assert len(items) == 8
    assert items["dispatcher"]["queue"] is None
    assert items["ecs_udf_ts"] == {
        **items["ecs_udf_python"],
        "name": "ecs_udf_ts",
        "queue": "ecs_udf_ts",
        "language": "node",
    }


def test_a_default_runtime_that_does_not_fit_is_refused_with_the_position_of_the_job(
    shared: Bench,
) -> None:
    text = """name: unfit
defaults: {runtime: ecs_udf_python}
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - name: count
    operator: sql
    inputs: [{from: {job: request}}]
    config: {sql: SELECT 1 AS n}
    outputs: [counts]
"""
    reply = shared.user.post("/v1/dags", json={"text": text})
    assert reply.status_code == 422
    [fault] = reply.json()["errors"]
    assert (fault["field"], fault["line"]) == ("jobs[1].runtime", 5)
    assert "not ecs_udf_python" in fault["message"]


def test_a_wake_up_goes_to_the_queue_of_the_runtime(shared: Bench) -> None:
    [task] = shared.tasks(options="runtime: ecs_platform")
    shared.live.drain()
    queue = shared.live.dsns.queue
    assert {"task_id": task} in queue_tables.bodies(queue, "ecs_python")
    assert queue_tables.bodies(queue, "ecs_platform") == []
