"""The way back: the version before counts again at once, and nothing of the other goes on."""

import pytest

from support.lifecycle import Bench
from support.rollouts import RolloutDag

THREE = ["0-9", "10-19", "20-29"]


@pytest.fixture
def story(shared: Bench) -> RolloutDag:
    return RolloutDag(shared)


def changed(story: RolloutDag) -> tuple[str, list[str]]:
    """A DAG with a second generation that is current. Returns what readers saw before."""
    story.deploy_and_build()
    before = story.seen("out")
    story.deploy(column=2)
    story.finish_all("work", "after")
    assert story.swap()
    assert story.seen("out") != before
    return before


def test_readers_see_the_old_generation_again_at_once(story: RolloutDag) -> None:
    before = changed(story)
    reply = story.roll_back()
    assert reply.status_code == 200, reply.text
    assert story.seen("out") == before
    text = story.bench.user.get(f"/v1/dags/{story.name}").json()["text"]
    assert text == story.text()
    assert story.rollout()["state"] == "rolled_back"


def test_waiting_tasks_of_the_abandoned_version_are_canceled_and_running_ones_told(
    story: RolloutDag,
) -> None:
    changed(story)
    story.trigger(30, 49)
    waiting, running = story.queued("work")
    attempt = story.bench.claimed(running)
    assert story.roll_back().json()["canceled"] == 2
    assert story.bench.status(waiting) == "Canceled"
    assert story.bench.heartbeat(attempt).json()["cancel_requested"]
    assert story.bench.fetch(running).json()["status"] == "Canceled"


def test_what_arrived_meanwhile_is_made_up_for(story: RolloutDag) -> None:
    changed(story)
    story.trigger(30, 39)
    story.finish_all("work", "after")
    story.roll_back()
    assert story.seen("out")[1] == THREE
    story.finish_all("work", "after")
    assert story.seen("out")[1] == [*THREE, "30-39"]
    assert story.seen("done")[1] == [*THREE, "30-39"]


def test_an_input_that_was_rewritten_meanwhile_is_read_again(story: RolloutDag) -> None:
    story.deploy_and_build()
    story.deploy(last=2)
    story.finish_all("after")
    assert story.swap()
    # The upstream of `after` writes a partition anew while the old generation is not current.
    story.bench.rows(
        """UPDATE partitions p SET committed_at = now() FROM datasets d JOIN jobs j USING (job_id)
             JOIN dags g USING (dag_id)
            WHERE g.name = %s AND j.name = 'work' AND p.dataset_version = d.dataset_version
              AND p.partition_key = '10-19'""",
        story.name,
    )
    story.roll_back()
    (again,) = story.queued("after")
    assert story.bench.row(again)["partition_key"] == "10-19"


def test_a_rollout_that_is_being_built_is_given_up(story: RolloutDag) -> None:
    story.deploy_and_build()
    before = story.seen("out")
    story.deploy(column=2)
    building = story.queued("work")
    assert story.roll_back().status_code == 200
    assert {story.bench.status(task_id) for task_id in building} == {"Canceled"}
    assert story.seen("out") == before
    assert not story.swap()
    story.trigger(30, 39)
    assert len(story.queued("work")) == 1


def test_after_a_rollback_the_same_text_goes_on_where_it_was_given_up(story: RolloutDag) -> None:
    story.deploy_and_build()
    story.deploy(column=2)
    first, second, third = story.queued("work")
    story.finish(first)
    attempt = story.bench.claimed(second)
    story.roll_back()
    story.deploy(column=2)
    # What was canceled waits again; what ran and was told to stop has lost its lease to a new try.
    assert story.queued("work") == [second, third]
    assert story.bench.heartbeat(attempt).json()["reason"] == "stale_attempt"
    assert story.bench.row(second)["attempt"] == 2
    story.finish_all("work", "after")
    assert story.swap()
    assert story.seen("out")[1] == THREE


def test_a_task_that_somebody_canceled_stays_canceled(story: RolloutDag) -> None:
    story.deploy_and_build()
    story.deploy(column=2)
    chosen = story.queued("work")[0]
    assert story.bench.cancel(chosen).status_code == 200
    story.roll_back()
    story.deploy(column=2)
    assert story.bench.status(chosen) == "Canceled"


def test_names_and_jobs_come_back(story: RolloutDag) -> None:
    story.deploy_and_build()
    before = {name: story.seen(name) for name in ("out", "done")}
    text = story.text(work="labour").replace(f"{story.name}_done", f"{story.name}_end")
    assert story.post(text).status_code == 200
    story.finish_all("labour", "after")
    assert story.swap()
    assert story.bench.user.get(f"/v1/datasets/{story.name}_done").status_code == 404
    assert story.roll_back().status_code == 200
    assert {name: story.seen(name) for name in ("out", "done")} == before
    jobs = story.bench.user.get(f"/v1/dags/{story.name}").json()["job_list"]
    assert sorted(job["job"] for job in jobs) == ["after", "request", "split", "work"]


def test_there_is_nothing_before_the_first_version(story: RolloutDag) -> None:
    story.deploy()
    refused = story.roll_back()
    assert (refused.status_code, refused.json()["code"]) == (409, "nothing_to_roll_back")


def test_a_rollback_leads_one_version_back_each_time(story: RolloutDag) -> None:
    versions = [story.deploy(column=n)["dag_version"] for n in (1, 2, 3)]
    assert [story.roll_back().json()["dag_version"] for _ in (1, 2)] == versions[1::-1]
    assert story.roll_back().status_code == 409


def test_a_dag_that_nobody_deployed_cannot_go_back(shared: Bench) -> None:
    assert shared.user.post("/v1/dags/nothing_here/rollback").status_code == 404


def test_readers_in_other_dags_follow_the_way_back(story: RolloutDag) -> None:
    changed(story)
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
    story.roll_back()
    assert other.finish_all("reader") == 3
