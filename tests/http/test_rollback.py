"""Rollback: the previous version is current again immediately and the newer one stops."""

import pytest

from support.dags.rollouts import RolloutDag
from support.lifecycle.lifecycle import Bench

THREE = ["0-9", "10-19", "20-29"]


@pytest.fixture
def dag(shared: Bench) -> RolloutDag:
    return RolloutDag(shared)


def changed(dag: RolloutDag) -> tuple[str, list[str]]:
    """Deploy a DAG, then a second generation that becomes current. Returns what readers saw before."""
    dag.deploy_and_build()
    before = dag.seen("out")
    dag.deploy(column=2)
    dag.finish_all("work", "after")
    assert dag.swap()
    assert dag.seen("out") != before
    return before


def test_readers_see_the_old_generation_immediately(dag: RolloutDag) -> None:
    before = changed(dag)
    reply = dag.roll_back()
    assert reply.status_code == 200, reply.text
    assert dag.seen("out") == before
    text = dag.bench.user.get(f"/v1/dags/{dag.name}").json()["text"]
    assert text == dag.text()
    assert dag.rollout()["state"] == "rolled_back"


def test_a_preview_says_what_a_rollback_does_and_changes_nothing(dag: RolloutDag) -> None:
    changed(dag)
    dag.trigger(30, 49)
    before = dag.bench.dump()
    reply = dag.bench.user.post(f"/v1/dags/{dag.name}/rollback", params={"dry_run": True})
    assert reply.status_code == 200, reply.text
    assert dag.bench.dump() == before
    preview = reply.json()
    assert (preview["dry_run"], preview["canceled"]) == (True, 2)
    assert {d["job"] for d in preview["datasets"]} == {"work", "after"}
    (named,) = [d for d in preview["datasets"] if d["job"] == "work"]
    assert named["from_version"] == dag.seen("out")[0] != named["to_version"]
    done = dag.roll_back().json()
    assert done == {**preview, "dry_run": False}
    assert dag.seen("out")[0] == named["to_version"]


def test_tasks_of_the_retired_version_are_canceled(
    dag: RolloutDag,
) -> None:
    changed(dag)
    dag.trigger(30, 49)
    waiting, running = dag.queued("work")
    attempt = dag.bench.claimed(running)
    assert dag.roll_back().json()["canceled"] == 2
    assert dag.bench.status(waiting) == "Canceled"
    assert dag.bench.heartbeat(attempt).json()["cancel_requested"]
    assert dag.bench.fetch(running).json()["status"] == "Canceled"


def test_blocks_that_arrived_meanwhile_are_built_after_the_rollback(dag: RolloutDag) -> None:
    changed(dag)
    dag.trigger(30, 39)
    dag.finish_all("work", "after")
    dag.roll_back()
    assert dag.seen("out")[1] == THREE
    dag.finish_all("work", "after")
    assert dag.seen("out")[1] == [*THREE, "30-39"]
    assert dag.seen("done")[1] == [*THREE, "30-39"]


def test_an_input_rewritten_meanwhile_is_processed_again(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    dag.deploy(last=2)
    dag.finish_all("after")
    assert dag.swap()
    # The upstream of `after` rewrites a partition while the old generation is not current.
    dag.bench.rows(
        """UPDATE partitions p SET committed_at = now() FROM datasets d JOIN jobs j USING (job_id)
             JOIN dags g USING (dag_id)
            WHERE g.name = %s AND j.name = 'work' AND p.dataset_version = d.dataset_version
              AND p.partition_key = '10-19'""",
        dag.name,
    )
    dag.roll_back()
    (again,) = dag.queued("after")
    assert dag.bench.row(again)["partition_key"] == "10-19"


def test_a_rollback_cancels_a_rollout_that_is_building(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    before = dag.seen("out")
    dag.deploy(column=2)
    building = dag.queued("work")
    assert dag.roll_back().status_code == 200
    assert {dag.bench.status(task_id) for task_id in building} == {"Canceled"}
    assert dag.seen("out") == before
    assert not dag.swap()
    dag.trigger(30, 39)
    assert len(dag.queued("work")) == 1


def test_a_redeploy_after_a_rollback_resumes_the_canceled_rollout(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    dag.deploy(column=2)
    first, second, third = dag.queued("work")
    dag.finish(first)
    attempt = dag.bench.claimed(second)
    dag.roll_back()
    dag.deploy(column=2)
    # Canceled tasks are queued again; running tasks with a cancel request lost their lease to a new attempt.
    assert dag.queued("work") == [second, third]
    assert dag.bench.heartbeat(attempt).json()["reason"] == "stale_attempt"
    assert dag.bench.row(second)["attempt"] == 2
    dag.finish_all("work", "after")
    assert dag.swap()
    assert dag.seen("out")[1] == THREE


def test_a_task_canceled_by_a_user_stays_canceled(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    dag.deploy(column=2)
    chosen = dag.queued("work")[0]
    assert dag.bench.cancel(chosen).status_code == 200
    dag.roll_back()
    dag.deploy(column=2)
    assert dag.bench.status(chosen) == "Canceled"


def test_a_rollback_restores_names_and_jobs(dag: RolloutDag) -> None:
    dag.deploy_and_build()
    before = {name: dag.seen(name) for name in ("out", "done")}
    text = dag.text(work="labour").replace(f"{dag.name}_done", f"{dag.name}_end")
    assert dag.post(text).status_code == 200
    dag.finish_all("labour", "after")
    assert dag.swap()
    assert dag.bench.user.get(f"/v1/datasets/{dag.name}_done").status_code == 404
    assert dag.roll_back().status_code == 200
    assert {name: dag.seen(name) for name in ("out", "done")} == before
    jobs = dag.bench.user.get(f"/v1/dags/{dag.name}").json()["job_list"]
    assert sorted(job["job"] for job in jobs) == ["after", "request", "split", "work"]


def test_the_first_version_cannot_be_rolled_back(dag: RolloutDag) -> None:
    dag.deploy()
    refused = dag.roll_back()
    assert (refused.status_code, refused.json()["code"]) == (409, "nothing_to_roll_back")


def test_each_rollback_goes_one_version_back(dag: RolloutDag) -> None:
    versions = [dag.deploy(column=n)["dag_version"] for n in (1, 2, 3)]
    assert [dag.roll_back().json()["dag_version"] for _ in (1, 2)] == versions[1::-1]
    assert dag.roll_back().status_code == 409


def test_an_unknown_dag_cannot_be_rolled_back(shared: Bench) -> None:
    assert shared.user.post("/v1/dags/nothing_here/rollback").status_code == 404


def test_readers_in_other_dags_follow_the_rollback(dag: RolloutDag) -> None:
    changed(dag)
    other = dag.deploy_reader()
    dag.roll_back()
    assert other.finish_all("reader") == 3
