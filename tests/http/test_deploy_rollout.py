"""A changed DAG: its new generations are built beside the old, and take their place at once."""

from uuid import uuid4

import pytest

from support import queue_tables
from support.lifecycle import Bench, run_behind_lock, run_concurrently
from support.rollouts import RolloutDag

THREE = ["0-9", "10-19", "20-29"]


@pytest.fixture
def story(shared: Bench) -> RolloutDag:
    return RolloutDag(shared)


def test_the_plan_says_what_changes_and_why(story: RolloutDag) -> None:
    story.deploy_and_build()
    plan = story.plan(column=2)
    actions = {job["name"]: (job["change"], job["action"]) for job in plan["plan"]["jobs"]}
    assert actions == {
        "request": ("unchanged", "keep"),
        "split": ("unchanged", "keep"),
        "work": ("changed", "build"),
        "after": ("unchanged", "build"),
    }
    work, after = story.job(plan, "work"), story.job(plan, "after")
    assert work["because"] == ["config.sql"]
    assert work["fields"] == [
        {"field": "config.sql", "before": "SELECT 1 FROM pieces", "after": "SELECT 2 FROM pieces"}
    ]
    assert after["because"] == ["upstream work"]
    held = {"scopes": 3, "partitions": 3, "row_count": 9, "byte_count": 12, "ranges": [[0, 29]]}
    assert work["rebuild"] == {"out": held}
    assert plan["plan"]["partitions"] == 6
    assert plan["plan"]["builds"]


def test_a_plan_changes_nothing(story: RolloutDag) -> None:
    story.deploy_and_build()
    before = story.bench.dump()
    story.plan(column=2)
    assert story.bench.dump() == before


def test_readers_see_the_old_generation_until_the_new_one_is_complete(story: RolloutDag) -> None:
    story.deploy_and_build()
    old, _ = story.seen("out")
    deployed = story.deploy(column=2)
    assert deployed["is_building"]
    assert story.seen("out") == (old, THREE)
    first, second, third = story.queued("work")
    for task_id in (first, second):
        story.finish(task_id)
        assert not story.swap()
        assert story.seen("out") == (old, THREE)
    story.finish(third)
    assert not story.swap()  # `after` is not there yet: all pointers move together
    story.finish_all("after")
    assert story.swap()
    new, keys = story.seen("out")
    assert (new != old, keys) == (True, THREE)
    assert story.seen("done")[1] == THREE
    assert story.rollout()["state"] == "complete"


def test_the_new_generation_reads_the_new_upstream_and_not_the_old(story: RolloutDag) -> None:
    story.deploy_and_build()
    old = story.current("out")["dataset_version"]
    story.deploy(column=2)
    story.finish(story.queued("work")[0])
    story.bench.live.drain()
    (task_id,) = story.queued("after")
    (source,) = story.bench.claimed(task_id).claimed["task"]["inputs"]
    assert source["dataset_version"] != old
    assert [p["partition_key"] for p in source["partitions"]] == ["0-9"]


def test_blocks_that_arrive_meanwhile_reach_both_generations(story: RolloutDag) -> None:
    story.deploy_and_build()
    story.deploy(column=2)
    story.trigger(30, 39)
    tasks = story.bench.rows(
        """SELECT t.bulk, t.revision_id = j.building_revision_id AS building
             FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
            WHERE g.name = %s AND j.name = 'work' AND t.partition_key = '30-39'""",
        story.name,
    )
    assert sorted((t["building"], t["bulk"]) for t in tasks) == [(False, False), (True, True)]
    story.finish_all("work", "after")
    assert story.swap()
    assert story.seen("out")[1] == [*THREE, "30-39"]


def test_what_the_old_generation_gains_has_to_be_covered_too(story: RolloutDag) -> None:
    story.deploy_and_build()
    story.deploy(column=2)
    story.finish_all("work", "after")
    story.trigger(30, 39)
    live, building = story.queued("work")
    if story.bench.row(live)["bulk"]:
        live, building = building, live
    story.finish(live)
    assert not story.swap()
    assert story.rollout()["targets"][-1]["missing"] == [[30, 39]]
    story.finish(building)
    story.finish_all("after")
    assert story.swap()


def test_another_size_of_the_pieces_covers_the_same_blocks(story: RolloutDag) -> None:
    story.deploy_and_build()
    story.deploy(size=15)
    story.finish_all("work", "after")
    assert story.swap()
    assert story.seen("done")[1] == ["0-14", "15-29"]


def test_a_change_that_shapes_no_rows_counts_at_once(story: RolloutDag) -> None:
    story.deploy_and_build()
    before = story.seen("out")
    deployed = story.deploy(options="max_attempts: 9")
    assert not deployed["is_building"]
    assert story.job(deployed, "work")["action"] == "adopt"
    assert story.seen("out") == before
    story.trigger(30, 39)
    (task_id,) = story.queued("work")
    assert story.bench.row(task_id)["max_attempts"] == 9


def test_with_nothing_to_serve_the_new_generation_is_current_at_once(story: RolloutDag) -> None:
    first = story.deploy()
    deployed = story.deploy(column=2)
    assert not deployed["is_building"]
    assert story.job(deployed, "work")["action"] == "start"
    versions = [{d["job"]: d["dataset_version"] for d in r["datasets"]} for r in (first, deployed)]
    assert versions[0]["work"] != versions[1]["work"]


def test_the_same_text_changes_nothing(story: RolloutDag) -> None:
    story.deploy_and_build()
    before = story.bench.dump()
    again = story.deploy()
    assert not again["changed"]
    assert story.bench.dump() == before


def test_the_old_generations_waiting_tasks_are_canceled_by_the_swap_and_not_before(
    story: RolloutDag,
) -> None:
    story.deploy_and_build()
    story.trigger(30, 49)
    waiting, running = story.queued("work")
    attempt = story.bench.claimed(running)
    story.deploy(column=2)
    assert story.bench.status(waiting) == "Queued"
    new = [t for t in story.queued("work") if t != waiting]
    for task_id in new:
        story.finish(task_id)
    story.finish_all("after")
    assert story.swap()
    assert story.bench.status(waiting) == "Canceled"
    assert story.bench.status(running) == "Running"
    assert story.bench.heartbeat(attempt).json()["cancel_requested"]


def test_a_job_that_is_gone_runs_until_the_swap(story: RolloutDag) -> None:
    extra = """
  - name: side
    operator: sql
    inputs: [{from: {job: work}}]
    outputs: [aside]
    config: {sql: "SELECT 1 FROM out"}
"""
    story.deploy(extra=extra)
    story.trigger(0, 9)
    story.finish_all("work", "after", "side")
    plan = story.deploy(column=2)
    assert story.job(plan, "side")["action"] == "retire"
    active = (
        "SELECT active FROM jobs j JOIN dags g USING (dag_id) WHERE g.name = %s AND j.name = %s"
    )
    assert story.bench.rows(active, story.name, "side") == [{"active": True}]
    story.finish_all("work", "after")
    assert story.swap()
    assert story.bench.rows(active, story.name, "side") == [{"active": False}]


def test_a_published_name_that_moves_waits_for_the_output_it_moves_to(story: RolloutDag) -> None:
    story.deploy_and_build()
    old, _ = story.seen("out")
    plan = story.deploy(work="labour")
    (moved,) = [name for name in plan["plan"]["names"] if name["name"] == f"{story.name}_out"]
    assert (moved["before"], moved["after"]) == ("work.out", "labour.out")
    assert story.seen("out") == (old, THREE)
    story.finish_all("labour", "after")
    assert story.swap()
    new, keys = story.seen("out")
    assert (new != old, keys) == (True, THREE)


def test_a_new_job_is_given_everything_that_its_input_holds(story: RolloutDag) -> None:
    story.deploy_and_build()
    extra = """
  - name: side
    operator: sql
    inputs: [{from: {job: work}}]
    outputs: [aside]
    config: {sql: "SELECT 1 FROM out"}
"""
    deployed = story.deploy(extra=extra)
    assert not deployed["is_building"]
    assert len(story.queued("side")) == 3


def test_a_changed_source_emits_again_what_it_was_told(story: RolloutDag) -> None:
    story.deploy_and_build()
    story.deploy(ranges="spans")
    story.bench.live.drain()
    story.trigger(30, 39)  # to the source that is live; the next look passes it on
    story.swap()
    story.finish_all("work", "after")
    assert story.swap()
    assert story.seen("out")[1] == [*THREE, "30-39"]


def test_readers_in_other_dags_get_the_new_generation_after_the_swap(story: RolloutDag) -> None:
    story.deploy_and_build()
    other = RolloutDag(story.bench)
    text = f"""
name: {other.name}
jobs:
  - name: reader
    operator: sql
    inputs: [{{from: {{dataset: {story.name}_out}}}}]
    outputs: [copy]
    config: {{sql: "SELECT 1 FROM {story.name}_out"}}
"""
    assert other.post(text).status_code == 200
    assert other.finish_all("reader") == 3
    story.deploy(column=2)
    story.finish_all("work", "after")
    assert other.queued("reader") == []
    assert story.swap()
    assert len(other.queued("reader")) == 3
    (source,) = story.bench.claimed(other.queued("reader")[0]).claimed["task"]["inputs"]
    assert source["dataset_version"] == story.current("out")["dataset_version"]


def test_the_reason_names_the_task_that_failed_for_good(story: RolloutDag) -> None:
    story.deploy_and_build()
    story.deploy(column=2)
    attempt = story.bench.claimed(story.queued("work")[0])
    words = {"error_code": "sql", "error_message": "no column 2", "retryable": False}
    assert story.bench.complete(attempt, "Failed", **words).status_code == 200
    found = story.rollout()
    assert [f["task_id"] for f in found["failures"]] == [attempt.task_id]
    assert "1 task failed permanently" in found["reason"]
    assert "no column 2" in found["reason"]


def test_what_cannot_be_covered_can_be_promoted(story: RolloutDag) -> None:
    story.deploy_and_build()
    story.deploy(column=2)
    for task_id in story.queued("work"):
        assert story.bench.cancel(task_id).status_code == 200
    assert not story.swap()
    assert "lacks blocks 0-29" in story.rollout()["reason"]
    reply = story.bench.user.post(f"/v1/dags/{story.name}/promote")
    assert reply.json()["state"] == "complete", reply.text
    assert story.seen("out")[1] == []
    again = story.bench.user.post(f"/v1/dags/{story.name}/promote")
    assert (again.status_code, again.json()["code"]) == (409, "conflict")


def test_a_deploy_for_another_version_than_the_plans_is_refused(story: RolloutDag) -> None:
    plan = story.plan()
    assert plan["base_version"] is None
    story.deploy()
    refused = story.post(story.text(column=2), base_version=plan["base_version"])
    assert (refused.status_code, refused.json()["code"]) == (409, "deploy_conflict")
    fresh = story.plan(column=2)["base_version"]
    assert story.post(story.text(column=2), base_version=fresh).status_code == 200


def test_of_two_deploys_at_once_one_wins_and_the_other_is_told(story: RolloutDag) -> None:
    story.deploy_and_build()
    key = f"deploy:00000000-0000-0000-0000-000000000001:{story.name}"
    lock = f"SELECT pg_advisory_xact_lock(hashtextextended('{key}', 0))"
    texts = [story.text(column=2), story.text(column=3)]
    with story.bench.live.user() as second:
        replies = run_behind_lock(
            story.bench.live.dsns.state,
            lock,
            [
                lambda: story.bench.user.post("/v1/dags", json={"text": texts[0]}),
                lambda: second.post("/v1/dags", json={"text": texts[1]}),
            ],
        )
    assert sorted(r.status_code for r in replies) == [200, 409]
    (lost,) = [r.json() for r in replies if r.status_code == 409]
    assert lost["code"] == "deploy_conflict"
    (won,) = [n for n, r in enumerate(replies) if r.status_code == 200]
    assert story.bench.user.get(f"/v1/dags/{story.name}").json()["text"] == texts[won]


def test_two_deploys_of_the_same_text_at_once_are_one(story: RolloutDag) -> None:
    text = story.text()
    with story.bench.live.user() as second:
        replies = run_concurrently(
            [
                lambda: story.bench.user.post("/v1/dags", json={"text": text}),
                lambda: second.post("/v1/dags", json={"text": text}),
            ]
        )
    assert [r.status_code for r in replies] == [200, 200]
    assert sorted(r.json()["changed"] for r in replies) == [False, True]


def test_a_second_change_takes_the_place_of_one_that_is_being_built(story: RolloutDag) -> None:
    story.deploy_and_build()
    old = story.seen("out")
    story.deploy(column=2)
    superseded = story.queued("work")
    story.deploy(column=3)
    assert {story.bench.status(task_id) for task_id in superseded} == {"Canceled"}
    assert story.seen("out") == old
    story.finish_all("work", "after")
    assert story.swap()
    assert story.roll_back().status_code == 200
    assert story.seen("out") == old


def test_a_bootstrap_is_asked_for_once(story: RolloutDag) -> None:
    text = story.text().replace(
        "source: {kind: manual}", "source: {kind: manual}\n    bootstrap: {start: 0, end: 29}"
    )
    assert story.post(text).status_code == 200
    story.bench.live.drain()
    assert len(story.queued("work")) == 3
    assert story.post(text.replace("SELECT 1 FROM out", "SELECT 2 FROM out")).status_code == 200
    story.bench.live.drain()
    assert len(story.queued("work")) == 3


def test_jobs_that_wait_for_themselves_through_another_dag_are_refused(shared: Bench) -> None:
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


def test_a_dataset_that_nobody_publishes_is_told_with_its_place(story: RolloutDag) -> None:
    story.deploy()
    text = f"""name: {story.name}_b
jobs:
  - name: reader
    operator: sql
    inputs: [{{from: {{dataset: {story.name}_outt}}}}]
    outputs: [copy]
    config: {{sql: "SELECT 1 FROM t"}}
"""
    for path in ("/v1/plans", "/v1/dags"):
        (fault,) = story.bench.user.post(path, json={"text": text}).json()["errors"]
        assert (fault["line"], fault["column"]) == (5, 22)
        assert f"did you mean '{story.name}_out'" in fault["message"]


def test_names_of_other_dags_are_told_all_at_once(story: RolloutDag) -> None:
    story.deploy()
    text = story.text().replace(f"name: {story.name}\n", f"name: {story.name}_b\n")
    for path in ("/v1/plans", "/v1/dags"):
        refused = story.bench.user.post(path, json={"text": text})
        assert (refused.status_code, refused.json()["code"]) == (409, "name_taken")
        for name in ("out", "done"):
            assert f"{story.name}_{name}" in refused.json()["detail"]


def test_an_event_that_slipped_through_is_asked_for_again(story: RolloutDag) -> None:
    """Routed by the pointers of before, after the deploy had looked: nobody's, but not for long."""
    story.deploy_and_build()
    story.deploy(column=2)
    lost = story.queued("work")[1]
    story.bench.rows("DELETE FROM tasks WHERE task_id = %s", lost)
    story.finish_all("work", "after")
    assert not story.swap()
    assert story.finish_all("work", "after") == 2
    assert story.swap()


def test_a_rebuild_gives_way_to_new_blocks_in_the_queue(story: RolloutDag) -> None:
    story.deploy_and_build()
    story.deploy(column=2)
    story.trigger(30, 39)
    story.bench.live.drain()
    found = queue_tables.bulk_flags(story.bench.live.dsns.queue)
    waiting = {task_id: found[task_id] for task_id in story.queued("work")}
    assert waiting == {task_id: story.bench.row(task_id)["bulk"] for task_id in waiting}
    assert sorted(waiting.values()) == [False, True, True, True, True]


def test_a_name_that_goes_away_is_told_with_those_who_read_it(story: RolloutDag) -> None:
    story.deploy()
    reader = f"""
name: {story.name}_b
jobs:
  - name: reader
    operator: sql
    inputs: [{{from: {{dataset: {story.name}_done}}, name: rows}}]
    outputs: [copy]
    config: {{sql: "SELECT 1 FROM rows"}}
"""
    assert story.post(reader).status_code == 200
    text = story.text().replace(f"  - {{name: {story.name}_done, from: {{job: after}}}}\n", "")
    reply = story.bench.user.post("/v1/plans", json={"text": text}).json()
    (name,) = reply["plan"]["names"]
    assert (name["name"], name["after"]) == (f"{story.name}_done", None)
    assert name["readers"] == [f"{story.name}_b.reader"]


def test_a_dag_cannot_read_a_name_that_it_gives_up(story: RolloutDag) -> None:
    story.deploy()
    text = story.text().replace("{job: work}", f"{{dataset: {story.name}_done}}", 1)
    text = text.replace(f"  - {{name: {story.name}_done, from: {{job: after}}}}\n", "")
    reply = story.post(text)
    assert reply.status_code == 422
    assert f"no published dataset '{story.name}_done'" in reply.json()["errors"][0]["message"]
