"""`POST /v1/tasks/cancel`: tasks are canceled together, by DAG, job, status, error or id."""

from functools import partial
from typing import Any
from uuid import uuid4

from support.dags.dags import FOLLOWER
from support.lifecycle.lifecycle import Bench, run_concurrently
from support.users import new_user


def cancel(bench: Bench, **body: Any) -> dict[str, Any]:
    reply = bench.user.post("/v1/tasks/cancel", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def statuses(bench: Bench, *task_ids: str) -> list[str]:
    return [bench.row(task_id)["status"] for task_id in task_ids]


def fail_once(bench: Bench, task_id: str, code: str) -> None:
    reply = bench.complete(bench.claimed(task_id), "Failed", error_code=code, retryable=True)
    assert reply.status_code == 200, reply.text
    assert bench.row(task_id)["retry_at"] is not None


def test_waiting_tasks_end_and_running_ones_are_asked_to_stop(shared: Bench) -> None:
    dag = shared.dag()
    queued, running, retrying = shared.tasks(3, dag=dag)
    attempt = shared.claimed(running)
    fail_once(shared, retrying, "rpc_failed")
    answer = cancel(shared, dag=dag.name)
    assert (answer["canceled"], answer["stopping"]) == (2, 1)
    assert statuses(shared, queued, running, retrying) == ["Canceled", "Running", "Canceled"]
    assert shared.row(retrying)["retry_at"] is None
    assert shared.call("/v1/task/heartbeat", attempt).json()["cancel_requested"]
    again = cancel(shared, dag=dag.name)
    assert (again["canceled"], again["stopping"], again["groups"]) == (0, 0, [])


def test_a_preview_counts_by_job_status_and_error_and_changes_nothing(shared: Bench) -> None:
    dag = shared.dag()
    first, *_ = shared.tasks(3, dag=dag)
    fail_once(shared, first, "rpc_failed")
    before = shared.dump()
    answer = cancel(shared, dag=dag.name, dry_run=True)
    assert shared.dump() == before
    groups = {(g["job"], g["status"], g["error_code"]): g["tasks"] for g in answer["groups"]}
    assert groups == {("work", "Failed", "rpc_failed"): 1, ("work", "Queued", None): 2}
    assert cancel(shared, dag=dag.name)["groups"] == answer["groups"]


def test_choices_narrow_each_other(shared: Bench) -> None:
    dag, other = shared.dag(), shared.dag()
    queued, running, retrying = shared.tasks(3, dag=dag)
    (elsewhere,) = shared.tasks(1, dag=other)
    shared.claimed(running)
    fail_once(shared, retrying, "rpc_failed")
    fail_once(shared, elsewhere, "rpc_failed")
    everything = (queued, running, retrying, elsewhere)
    assert cancel(shared, dag=dag.name, job="split")["groups"] == []
    cancel(shared, dag=dag.name, error_code="rpc_failed")
    assert statuses(shared, *everything) == ["Queued", "Running", "Canceled", "Failed"]
    cancel(shared, dag=dag.name, job="work", status="Queued")
    assert statuses(shared, *everything) == ["Canceled", "Running", "Canceled", "Failed"]
    assert not shared.row(running)["cancel_requested"]


def test_named_tasks_that_are_not_canceled_have_a_reason(shared: Bench) -> None:
    dag = shared.dag()
    queued, running, stopping, ended = shared.tasks(4, dag=dag)
    for task in (running, stopping):
        shared.claimed(task)
    assert shared.cancel(stopping).status_code == shared.cancel(ended).status_code == 200
    answer = cancel(shared, task_ids=[queued, running, stopping, ended], status="Queued")
    assert answer["canceled"] == 1
    assert {item["task_id"]: item["reason"] for item in answer["skipped"]} == {
        running: "it has another status or error, or belongs to another job",
        stopping: "it is asked to stop already",
        ended: "it is Canceled",
    }
    missing = shared.user.post("/v1/tasks/cancel", json={"task_ids": [str(uuid4())]})
    assert missing.status_code == 404


def test_a_request_must_choose_tasks_and_needs_a_writer(shared: Bench) -> None:
    for body in ({}, {"job": "work"}, {"status": "Queued"}, {"dag": "d", "status": "Completed"}):
        assert shared.user.post("/v1/tasks/cancel", json=body).status_code == 422, body
    dag = shared.dag()
    (task,) = shared.tasks(1, dag=dag)
    with new_user(shared, "reader") as reader:
        reply = reader.post("/v1/tasks/cancel", json={"dag": dag.name})
    assert reply.status_code == 403 and statuses(shared, task) == ["Queued"]


def test_a_follower_is_canceled_by_its_id_only(shared: Bench) -> None:
    name = f"f_{uuid4().hex[:12]}"
    text = FOLLOWER.format(name=name)
    assert shared.user.post("/v1/dags", json={"text": text}).status_code == 200
    shared.live.run(shared.live.service.sources.supervise_once)
    query = {"dag": name, "job": "follow"}
    (item,) = shared.user.get("/v1/tasks", params=query).json()["items"]
    task = item["task_id"]
    assert cancel(shared, dag=name)["groups"] == []
    assert cancel(shared, task_ids=[task])["canceled"] == 1


def test_concurrent_cancellations_and_retries_do_not_deadlock(shared: Bench) -> None:
    dag = shared.dag()
    tasks = shared.tasks(20, dag=dag)
    for task in tasks[::2]:
        fail_once(shared, task, "rpc_failed")

    def call(number: int) -> int:
        path = "retry" if number % 2 else "cancel"
        ids = tasks if number % 3 else tasks[::-1]
        return shared.user.post(f"/v1/tasks/{path}", json={"task_ids": ids}).status_code

    assert set(run_concurrently([partial(call, n) for n in range(6)])) == {200}
    cancel(shared, dag=dag.name)
    assert set(statuses(shared, *tasks)) == {"Canceled"}
