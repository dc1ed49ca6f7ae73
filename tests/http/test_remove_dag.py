"""Removing a DAG: tasks, names and data, what is refused, and what a second deploy finds."""

from typing import Any

import httpx
import pytest

from support.dags.rollouts import RolloutDag
from support.lifecycle.lifecycle import Bench

READER = """
name: {name}
jobs:
  - name: copy
    operator: sql
    inputs: [{{from: {{dataset: {read}}}}}]
    outputs: [rows]
    config: {{sql: "SELECT 1 FROM {read}"}}
publish:
  - {{name: {name}_rows, from: {{job: copy}}}}
"""


@pytest.fixture
def dag(shared: Bench) -> RolloutDag:
    made = RolloutDag(shared)
    made.deploy_and_build()
    return made


def remove(dag: RolloutDag, **fields: Any) -> httpx.Response:
    return dag.bench.user.post(f"/v1/dags/{dag.name}/remove", json=fields)


def purge(dag: RolloutDag) -> None:
    while dag.bench.live.run(dag.bench.live.service.retention.delete_once):
        pass


def test_a_removed_dag_leaves_no_task_name_or_partition(shared: Bench, dag: RolloutDag) -> None:
    dag.trigger(30, 59)
    running = shared.claimed(dag.queued("work")[0])
    preview = remove(dag, dry_run=True).json()
    assert (preview["removed"], preview["jobs"]) == (False, ["after", "request", "split", "work"])
    assert (preview["tasks"], preview["partitions"]) == (3, 6)
    assert preview["names"] == [f"{dag.name}_done", f"{dag.name}_out"]
    assert len(dag.queued("work")) == 2, "a dry run changed something"

    removed = remove(dag).json()
    assert removed == {**preview, "removed": True}
    assert remove(dag).json()["removed"] is False
    assert not dag.queued("work")
    assert shared.user.get(f"/v1/datasets/{dag.name}_out").status_code == 404
    assert dag.name not in [d["dag"] for d in shared.user.get("/v1/dags").json()["items"]]
    # An attempt that has not heard of the removal yet must not bring data back.
    shared.complete(
        running, datasets_published=[shared.write_output(running)], events=[running.event()]
    )
    purge(dag)
    unused = shared.rows("SELECT kind FROM unused_prefixes WHERE kind = 'superseded'")
    assert len(unused) >= 6
    left = """SELECT 1 FROM partitions p JOIN dataset_versions v USING (dataset_version)
                JOIN datasets d USING (dataset_uuid) JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
               WHERE g.removed_name = %s"""
    assert not shared.rows(left, dag.name)

    dag.deploy_and_build()
    assert dag.seen("done")[1] == ["0-9", "10-19", "20-29"]


def test_kept_data_is_served_again_after_the_next_deploy(dag: RolloutDag) -> None:
    before = dag.seen("done")
    assert remove(dag, keep_data=True).json()["removed"] is True
    purge(dag)
    dag.deploy()
    assert dag.seen("done") == before
    assert dag.finish_all("work", "after") == 0, "kept data was built again"


def test_a_dataset_that_another_dag_reads_keeps_its_dag_until_breaking_is_allowed(
    shared: Bench, dag: RolloutDag
) -> None:
    other = f"{dag.name}_reader"
    text = READER.format(name=other, read=f"{dag.name}_out")
    assert shared.user.post("/v1/dags", json={"text": text}).status_code == 200

    refused = remove(dag)
    assert (refused.status_code, refused.json()["code"]) == (409, "name_in_use")
    assert f"{dag.name}_out is read by {other}.copy" in refused.json()["detail"]

    lines = [line for line in dag.text().splitlines() if f"{dag.name}_out" not in line]
    without = "\n".join(lines) + "\n"
    plan = shared.user.post("/v1/plans", json={"text": without}).json()["plan"]
    assert plan["breaking"] == {f"{dag.name}_out": [f"{other}.copy"]}
    refused = dag.post(without)
    assert (refused.status_code, refused.json()["code"]) == (409, "name_in_use")
    assert dag.seen("out")[1], "the refused deploy changed something"
    assert dag.post(without, allow_breaking=True).status_code == 200
    assert remove(dag).status_code == 200


def test_an_unknown_dag_cannot_be_removed(shared: Bench) -> None:
    reply = shared.user.post("/v1/dags/nothing_here/remove", json={})
    assert reply.status_code == 404


def test_a_plan_counts_the_tasks_that_rebuild_and_not_every_output(
    shared: Bench, dag: RolloutDag
) -> None:
    plan = dag.plan(column=2)["plan"]
    assert {job["name"] for job in plan["jobs"] if job["action"] == "build"} == {"work", "after"}
    assert (plan["partitions"], plan["tasks"]) == (6, 6)
    # The published name moves to a new job, which rebuilds what the old one had.
    moved = dag.plan(column=2, work="other")["plan"]
    assert (moved["partitions"], moved["tasks"]) == (6, 6)
