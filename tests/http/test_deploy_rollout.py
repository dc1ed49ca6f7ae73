"""Rollouts of a changed DAG: new generations are built next to the old ones, then swapped together."""

from uuid import uuid4

import pytest

from support import queue_tables
from support.dags.rollouts import RolloutDag
from support.lifecycle.lifecycle import Bench, parquet_file, run_behind_lock, run_concurrently

THREE = ["0-9", "10-19", "20-29"]


@pytest.fixture
def dag(shared: Bench) -> RolloutDag:
    return RolloutDag(shared)


def test_the_plan_lists_changes_with_their_reasons(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    plan = dag.plan(column=2)
    actions = {job["name"]: (job["change"], job["action"]) for job in plan["plan"]["jobs"]}
    assert actions == {
        "request": ("unchanged", "keep"),
        "split": ("unchanged", "keep"),
        "work": ("changed", "build"),
        "after": ("unchanged", "build"),
    }
    work, after = dag.job(plan, "work"), dag.job(plan, "after")
    assert work["because"] == ["config.sql"]
    assert work["fields"] == [
        {"field": "config.sql", "before": "SELECT 1 FROM pieces", "after": "SELECT 2 FROM pieces"}
    ]
    assert after["because"] == ["upstream work"]
    existing_data = {
        "scopes": 3,
        "partitions": 3,
        "row_count": 9,
        "byte_count": 3 * len(parquet_file(3)),
        "ranges": [[0, 29]],
        "tasks": 3,
    }
    assert work["rebuild"] == {"out": existing_data}
    assert plan["plan"]["partitions"] == 6
    assert plan["plan"]["builds"]


def test_a_plan_changes_nothing(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    before = dag.bench.dump()
    dag.plan(column=2)
    assert dag.bench.dump() == before


def test_readers_see_the_old_generation_until_the_new_one_is_complete(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    old, _ = dag.seen("out")
    deployed = dag.deploy(column=2)
    assert deployed["is_building"]
    assert dag.seen("out") == (old, THREE)
    first, second, third = dag.queued("work")
    for task_id in (first, second):
        dag.finish(task_id)
        assert not dag.swap()
        assert dag.seen("out") == (old, THREE)
    dag.finish(third)
    assert not dag.swap()  # `after` is not built yet, and all datasets swap together
    dag.finish_all("after")
    assert dag.swap()
    new, keys = dag.seen("out")
    assert (new != old, keys) == (True, THREE)
    assert dag.seen("done")[1] == THREE
    assert dag.rollout()["state"] == "complete"


def test_the_new_generation_reads_the_new_upstream_and_not_the_old(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    old = dag.current("out")["dataset_version"]
    dag.deploy(column=2)
    dag.finish(dag.queued("work")[0])
    dag.bench.live.drain()
    (task_id,) = dag.queued("after")
    (source,) = dag.bench.claimed(task_id).claimed["task"]["inputs"]
    assert source["dataset_version"] != old
    assert [p["partition_key"] for p in source["partitions"]] == ["0-9"]


def test_blocks_that_arrive_during_a_rollout_are_built_in_both_generations(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    dag.deploy(column=2)
    dag.trigger(30, 39)
    tasks = dag.bench.rows(
        """SELECT t.bulk, t.revision_id = j.building_revision_id AS building
             FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
            WHERE g.name = %s AND j.name = 'work' AND t.partition_key = '30-39'""",
        dag.name,
    )
    assert sorted((t["building"], t["bulk"]) for t in tasks) == [(False, False), (True, True)]
    dag.finish_all("work", "after")
    assert dag.swap()
    assert dag.seen("out")[1] == [*THREE, "30-39"]


def test_the_swap_waits_for_blocks_that_the_old_generation_gained(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    dag.deploy(column=2)
    dag.finish_all("work", "after")
    dag.trigger(30, 39)
    live, building = dag.queued("work")
    if dag.bench.row(live)["bulk"]:
        live, building = building, live
    dag.finish(live)
    assert not dag.swap()
    assert dag.rollout()["targets"][-1]["missing"] == [[30, 39]]
    dag.finish(building)
    dag.finish_all("after")
    assert dag.swap()


def test_a_rollout_with_another_partition_size_covers_the_same_blocks(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    dag.deploy(size=15)
    dag.finish_all("work", "after")
    assert dag.swap()
    assert dag.seen("done")[1] == ["0-14", "15-29"]


def test_a_change_that_does_not_affect_rows_applies_immediately(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    before = dag.seen("out")
    deployed = dag.deploy(options="max_attempts: 9")
    assert not deployed["is_building"]
    assert dag.job(deployed, "work")["action"] == "adopt"
    assert dag.seen("out") == before
    dag.trigger(30, 39)
    (task_id,) = dag.queued("work")
    assert dag.bench.row(task_id)["max_attempts"] == 9


def test_without_existing_data_the_new_generation_is_current_immediately(dag: RolloutDag) -> None:
    first = dag.deploy()
    deployed = dag.deploy(column=2)
    assert not deployed["is_building"]
    assert dag.job(deployed, "work")["action"] == "start"
    versions = [{d["job"]: d["dataset_version"] for d in r["datasets"]} for r in (first, deployed)]
    assert versions[0]["work"] != versions[1]["work"]


def test_a_deploy_of_the_same_text_changes_nothing(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    before = dag.bench.dump()
    again = dag.deploy()
    assert not again["changed"]
    assert dag.bench.dump() == before


def test_the_swap_cancels_queued_tasks_of_the_old_generation(
    dag: RolloutDag,
) -> None:
    dag.deploy_and_build()
    dag.trigger(30, 49)
    waiting, running = dag.queued("work")
    attempt = dag.bench.claimed(running)
    dag.deploy(column=2)
    assert dag.bench.status(waiting) == "Queued"
    new = [t for t in dag.queued("work") if t != waiting]
    for task_id in new:
        dag.finish(task_id)
    dag.finish_all("after")
    assert dag.swap()
    assert dag.bench.status(waiting) == "Canceled"
    assert dag.bench.status(running) == "Running"
    assert dag.bench.heartbeat(attempt).json()["cancel_requested"]


def test_a_removed_job_stays_active_until_the_swap(dag: RolloutDag) -> None:
    extra = """
  - name: side
    operator: sql
    inputs: [{from: {job: work}}]
    outputs: [aside]
    config: {sql: "SELECT 1 FROM out"}
"""
    dag.deploy(extra=extra)
    dag.trigger(0, 9)
    dag.finish_all("work", "after", "side")
    plan = dag.deploy(column=2)
    assert dag.job(plan, "side")["action"] == "retire"
    active = (
        "SELECT active FROM jobs j JOIN dags g USING (dag_id) WHERE g.name = %s AND j.name = %s"
    )
    assert dag.bench.rows(active, dag.name, "side") == [{"active": True}]
    dag.finish_all("work", "after")
    assert dag.swap()
    assert dag.bench.rows(active, dag.name, "side") == [{"active": False}]


def test_a_moved_published_name_switches_when_its_new_output_is_complete(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    old, _ = dag.seen("out")
    plan = dag.deploy(work="labour")
    (moved,) = [name for name in plan["plan"]["names"] if name["name"] == f"{dag.name}_out"]
    assert (moved["before"], moved["after"]) == ("work.out", "labour.out")
    assert dag.seen("out") == (old, THREE)
    dag.finish_all("labour", "after")
    assert dag.swap()
    new, keys = dag.seen("out")
    assert (new != old, keys) == (True, THREE)


def test_a_new_job_gets_tasks_for_all_existing_input(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    extra = """
  - name: side
    operator: sql
    inputs: [{from: {job: work}}]
    outputs: [aside]
    config: {sql: "SELECT 1 FROM out"}
"""
    deployed = dag.deploy(extra=extra)
    assert not deployed["is_building"]
    assert len(dag.queued("side")) == 3


def test_a_changed_source_emits_its_triggered_ranges_again(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    dag.deploy(ranges="spans")
    dag.bench.live.drain()
    dag.trigger(30, 39)  # triggers the current source; the next swapper pass forwards it
    dag.swap()
    dag.finish_all("work", "after")
    assert dag.swap()
    assert dag.seen("out")[1] == [*THREE, "30-39"]


def test_readers_in_other_dags_get_the_new_generation_after_the_swap(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    other = dag.deploy_reader()
    dag.deploy(column=2)
    dag.finish_all("work", "after")
    assert other.queued("reader") == []
    assert dag.swap()
    assert len(other.queued("reader")) == 3
    (source,) = dag.bench.claimed(other.queued("reader")[0]).claimed["task"]["inputs"]
    assert source["dataset_version"] == dag.current("out")["dataset_version"]


def test_the_rollout_reason_names_the_permanently_failed_task(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    dag.deploy(column=2)
    attempt = dag.bench.claimed(dag.queued("work")[0])
    failure = {"error_code": "sql", "error_message": "no column 2", "retryable": False}
    assert dag.bench.complete(attempt, "Failed", **failure).status_code == 200
    rollout = dag.rollout()
    assert [f["task_id"] for f in rollout["failures"]] == [attempt.task_id]
    assert "1 task failed permanently" in rollout["reason"]
    assert "no column 2" in rollout["reason"]


def test_an_incomplete_rollout_can_be_promoted(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    dag.deploy(column=2)
    for task_id in dag.queued("work"):
        assert dag.bench.cancel(task_id).status_code == 200
    assert not dag.swap()
    assert "lacks blocks 0-29" in dag.rollout()["reason"]
    reply = dag.bench.user.post(f"/v1/dags/{dag.name}/promote")
    assert reply.json()["state"] == "complete", reply.text
    assert dag.seen("out")[1] == []
    again = dag.bench.user.post(f"/v1/dags/{dag.name}/promote")
    assert (again.status_code, again.json()["code"]) == (409, "conflict")


def test_a_deploy_with_an_outdated_base_version_is_refused(dag: RolloutDag) -> None:
    plan = dag.plan()
    assert plan["base_version"] is None
    dag.deploy()
    refused = dag.post(dag.text(column=2), base_version=plan["base_version"])
    assert (refused.status_code, refused.json()["code"]) == (409, "deploy_conflict")
    fresh = dag.plan(column=2)["base_version"]
    assert dag.post(dag.text(column=2), base_version=fresh).status_code == 200


def test_of_two_concurrent_deploys_one_wins_and_the_other_is_refused(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    key = f"deploy:00000000-0000-0000-0000-000000000001:{dag.name}"
    lock = f"SELECT pg_advisory_xact_lock(hashtextextended('{key}', 0))"
    texts = [dag.text(column=2), dag.text(column=3)]
    with dag.bench.live.user() as second:
        replies = run_behind_lock(
            dag.bench.live.dsns.state,
            lock,
            [
                lambda: dag.bench.user.post("/v1/dags", json={"text": texts[0]}),
                lambda: second.post("/v1/dags", json={"text": texts[1]}),
            ],
        )
    assert sorted(r.status_code for r in replies) == [200, 409]
    (lost,) = [r.json() for r in replies if r.status_code == 409]
    assert lost["code"] == "deploy_conflict"
    (winner,) = [n for n, r in enumerate(replies) if r.status_code == 200]
    assert dag.bench.user.get(f"/v1/dags/{dag.name}").json()["text"] == texts[winner]


def test_two_concurrent_deploys_of_the_same_text_change_the_dag_once(dag: RolloutDag) -> None:
    text = dag.text()
    with dag.bench.live.user() as second:
        replies = run_concurrently(
            [
                lambda: dag.bench.user.post("/v1/dags", json={"text": text}),
                lambda: second.post("/v1/dags", json={"text": text}),
            ]
        )
    assert [r.status_code for r in replies] == [200, 200]
    assert sorted(r.json()["changed"] for r in replies) == [False, True]


def test_a_second_deploy_replaces_a_rollout_that_is_building(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    old = dag.seen("out")
    dag.deploy(column=2)
    superseded = dag.queued("work")
    dag.deploy(column=3)
    assert {dag.bench.status(task_id) for task_id in superseded} == {"Canceled"}
    assert dag.seen("out") == old
    dag.finish_all("work", "after")
    assert dag.swap()
    assert dag.roll_back().status_code == 200
    assert dag.seen("out") == old


def test_a_bootstrap_range_is_triggered_once(dag: RolloutDag) -> None:
    text = dag.text().replace(
        "source: {kind: manual}", "source: {kind: manual}\n    bootstrap: {start: 0, end: 29}"
    )
    assert dag.post(text).status_code == 200
    dag.bench.live.drain()
    assert len(dag.queued("work")) == 3
    assert dag.post(text.replace("SELECT 1 FROM out", "SELECT 2 FROM out")).status_code == 200
    dag.bench.live.drain()
    assert len(dag.queued("work")) == 3


def test_a_dependency_cycle_across_dags_is_refused(shared: Bench) -> None:
    a, b = f"a_{uuid4().hex[:8]}", f"b_{uuid4().hex[:8]}"

    def text(name: str, upstream: str) -> str:
        return f"""
name: {name}
jobs:
  - name: copy
    operator: sql
    inputs: [{{from: {{{upstream}}}, name: rows}}]
    outputs: [rows]
    config: {{sql: "SELECT 1 FROM rows"}}
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
publish: [{{name: {name}_rows, from: {{job: copy}}}}]
"""

    for dag, upstream in ((a, "job: request"), (b, f"dataset: {a}_rows")):
        reply = shared.user.post("/v1/dags", json={"text": text(dag, upstream)})
        assert reply.status_code == 200, reply.text
    refused = shared.user.post("/v1/dags", json={"text": text(a, f"dataset: {b}_rows")})
    assert refused.status_code == 422
    assert "waits for its own output" in refused.json()["errors"][0]["message"]


def test_an_unpublished_dataset_is_reported_with_its_position(dag: RolloutDag) -> None:
    dag.deploy()
    text = f"""name: {dag.name}_b
jobs:
  - name: reader
    operator: sql
    inputs: [{{from: {{dataset: {dag.name}_outt}}}}]
    outputs: [copy]
    config: {{sql: "SELECT 1 FROM t"}}
"""
    for path in ("/v1/plans", "/v1/dags"):
        (fault,) = dag.bench.user.post(path, json={"text": text}).json()["errors"]
        assert (fault["line"], fault["column"]) == (5, 22)
        assert f"did you mean '{dag.name}_out'" in fault["message"]


def test_all_names_taken_by_other_dags_are_reported_together(dag: RolloutDag) -> None:
    dag.deploy()
    text = dag.text().replace(f"name: {dag.name}\n", f"name: {dag.name}_b\n")
    for path in ("/v1/plans", "/v1/dags"):
        refused = dag.bench.user.post(path, json={"text": text})
        assert (refused.status_code, refused.json()["code"]) == (409, "name_taken")
        for name in ("out", "done"):
            assert f"{dag.name}_{name}" in refused.json()["detail"]


def test_the_swapper_creates_missing_tasks_of_a_rollout(dag: RolloutDag) -> None:
    """An event routed concurrently with the deploy may create no task for the new generation."""
    dag.deploy_and_build()
    dag.deploy(column=2)
    lost = dag.queued("work")[1]
    dag.bench.rows("DELETE FROM tasks WHERE task_id = %s", lost)
    dag.finish_all("work", "after")
    assert not dag.swap()
    assert dag.finish_all("work", "after") == 2
    assert dag.swap()


def test_rebuild_tasks_are_bulk_messages_and_new_blocks_are_not(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    dag.deploy(column=2)
    dag.trigger(30, 39)
    dag.bench.live.drain()
    bulk_flags = queue_tables.bulk_flags(dag.bench.live.dsns.queue)
    waiting = {task_id: bulk_flags[task_id] for task_id in dag.queued("work")}
    assert waiting == {task_id: dag.bench.row(task_id)["bulk"] for task_id in waiting}
    assert sorted(waiting.values()) == [False, True, True, True, True]


def test_the_plan_lists_the_readers_of_a_removed_name(dag: RolloutDag) -> None:
    dag.deploy()
    reader = f"""
name: {dag.name}_b
jobs:
  - name: reader
    operator: sql
    inputs: [{{from: {{dataset: {dag.name}_done}}, name: rows}}]
    outputs: [copy]
    config: {{sql: "SELECT 1 FROM rows"}}
"""
    assert dag.post(reader).status_code == 200
    text = dag.text().replace(f"  - {{name: {dag.name}_done, from: {{job: after}}}}\n", "")
    reply = dag.bench.user.post("/v1/plans", json={"text": text}).json()
    (name,) = reply["plan"]["names"]
    assert (name["name"], name["after"]) == (f"{dag.name}_done", None)
    assert name["readers"] == [f"{dag.name}_b.reader"]


def test_a_dag_cannot_read_a_name_that_it_stops_publishing(dag: RolloutDag) -> None:
    dag.deploy()
    text = dag.text().replace("{job: work}", f"{{dataset: {dag.name}_done}}", 1)
    text = text.replace(f"  - {{name: {dag.name}_done, from: {{job: after}}}}\n", "")
    reply = dag.post(text)
    assert reply.status_code == 422
    assert f"no published dataset '{dag.name}_done'" in reply.json()["errors"][0]["message"]


def test_the_events_of_a_source_are_emitted_again_for_its_new_generation(dag: RolloutDag) -> None:
    """A source only emits events: only its old events can feed readers."""

    def text(output: str) -> str:
        return dag.text(ranges=output)

    assert dag.post(text("blocks")).status_code == 200
    dag.trigger(0, 29)
    dag.finish_all("work", "after")
    before = dag.seen("out")
    assert dag.post(text("logs")).status_code == 200
    dag.finish_all("work", "after")
    assert dag.swap()
    version, partitions = dag.seen("out")
    assert (version != before[0], partitions) == (True, before[1])
