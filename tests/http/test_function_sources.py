"""Sources with a function: each tick or trigger is a task, and its events start other jobs."""

from typing import Any
from uuid import uuid4

from support.bundles import make_zip, push
from support.dags.clock import Clock
from support.lifecycle.lifecycle import Attempt, Bench

_DAG = """
name: {{name}}
jobs:
  - name: feed
    source: {source}
    operator: udf_source
    outputs: [requests]
    config: {{{{size: 10}}}}
    udf: {{{{bundle: feed, sha256: {sha256}, handler: rule.handler}}}}
  - name: split
    operator: range_splitter
    inputs: [{{{{from: {{{{job: feed}}}}}}}}]
    outputs: [ranges]
    config: {{{{size: 10}}}}
  - name: keyed
    operator: sql
    inputs: [{{{{from: {{{{job: feed}}}}}}}}]
    outputs: [out]
    config: {{{{sql: "SELECT 1 AS n /* {{text}} */"}}}}
"""
CRON = "{{kind: cron, schedule: '* * * * *'}}"
MANUAL = "{{kind: manual}}"


def make_dag(bench: Bench, source: str) -> tuple[Clock, str]:
    """Push a function and deploy it as a source. Returns the DAG and the text of its file."""
    pushed = push(bench, "feed", make_zip(f"# {uuid4()}"))
    text = _DAG.format(source=source, sha256=pushed.json()["sha256"])
    return Clock(bench, text), text


def emit(clock: Clock, attempt: Attempt, *events: dict[str, Any]) -> int:
    named = [{"dataset_uuid": attempt.output["dataset_uuid"], **event} for event in events]
    reply = clock.bench.call("/v1/task/events", attempt, events=named)
    assert reply.status_code == 200, reply.text
    clock.bench.live.drain()
    return reply.json()["accepted"]


def count_events(clock: Clock) -> int:
    events = clock.bench.user.get("/v1/events", params={"dag": clock.name, "job": "feed"})
    return len(events.json()["items"])


def test_a_tick_is_a_task_of_the_source_and_its_events_start_other_jobs(shared: Bench) -> None:
    clock, _ = make_dag(shared, CRON)
    body = {"scheduled_time": "2026-03-01T12:00:00Z"}
    answer = clock.trigger("feed", **body)
    assert (answer["created"], answer["event_id"], answer["event_ids"]) == (True, None, [])
    again = clock.trigger("feed", **body)  # from a second scheduler
    assert (again["created"], again["task_id"]) == (False, answer["task_id"])
    [task] = clock.tasks("feed")
    assert (task["runtime"], task["status"]) == ("lambda", "Queued")
    path = f"/v1/schedules/{clock.name}/feed/last-tick"
    last = shared.user.get(path, params={"until": "2026-03-02T00:00:00Z"}).json()
    assert last["tick"] == body["scheduled_time"]
    attempt = shared.claimed(answer["task_id"])
    payload = attempt.claimed["task"]
    assert payload["parameters"] == body and payload["inputs"] == []
    assert payload["udf"]["bundle"] == "feed" and payload["config"] == {"size": 10}
    assert count_events(clock) == 0  # the tick itself starts no other job
    blocks = {"partition_key": "0-19", "start": 0, "end": 19}
    assert emit(clock, attempt, blocks, {"partition_key": "report"}) == 2
    assert emit(clock, attempt, blocks) == 0  # a repeated call
    assert shared.complete(attempt).status_code == 200
    splits = {t["partition_key"]: t["status"] for t in clock.tasks("split")}
    assert splits["0-19"] == "Completed", splits
    assert {t["partition_key"] for t in clock.tasks("keyed")} == {"0-19", "report"}
    progress = {"dag": clock.name, "event_ids": [], "task_ids": [answer["task_id"]]}
    work = shared.user.post("/v1/progress", json=progress).json()
    assert work["completed"] >= 2 and work["queued"] == 2, work


def test_a_cursor_and_a_payload_reach_the_function(shared: Bench) -> None:
    clock, _ = make_dag(shared, MANUAL)
    answer = clock.trigger("feed", cursor=7, payload={"a": 1})
    clock.trigger("feed", 409, cursor=7, payload={"a": 2})
    attempt = shared.claimed(answer["task_id"])
    assert attempt.scope["cursor"] == 7
    assert attempt.claimed["task"]["parameters"] == {"payload": {"a": 1}}
    assert shared.complete(attempt).status_code == 200
    one, other = (clock.trigger("feed", payload=1)["task_id"] for _ in range(2))
    assert one != other  # without a scope, each request is a task of its own


def test_a_failed_task_of_a_source_runs_again_when_it_is_triggered_again(shared: Bench) -> None:
    clock, _ = make_dag(shared, MANUAL)
    task_id = clock.trigger("feed", start=0, end=9)["task_id"]
    attempt = shared.claimed(task_id)
    assert attempt.scope["end"] == 9
    failed = shared.complete(attempt, "Failed", error_code="x", retryable=False)
    assert failed.status_code == 200, failed.text
    again = clock.trigger("feed", start=0, end=9)
    assert (again["created"], again["retried_task_ids"]) == (False, [task_id])


def test_a_paused_source_keeps_its_tasks_until_it_resumes(shared: Bench) -> None:
    clock, _ = make_dag(shared, MANUAL)
    job = {"dag": clock.name, "job": "feed"}
    assert shared.user.post("/v1/pauses", json={**job, "reason": "test"}).status_code == 200
    answer = clock.trigger("feed", payload=1)
    assert answer["created"] and answer["deferred_by"]
    assert shared.claim(answer["task_id"]).json()["status"] == "NotClaimed"
    assert shared.user.post("/v1/pauses/resume", json=job).status_code == 200
    shared.live.drain()
    assert shared.claim(answer["task_id"]).json()["status"] == "Claimed"


def test_waiting_tasks_of_a_source_run_with_the_function_of_a_new_deploy(shared: Bench) -> None:
    clock, text = make_dag(shared, MANUAL)
    done, running, waiting = (clock.trigger("feed", payload=n)["task_id"] for n in range(3))
    first = shared.claimed(done)
    emit(clock, first, {"partition_key": "0-9"})
    assert shared.complete(first).status_code == 200
    second = shared.claimed(running)
    old = text.partition("sha256: ")[2].partition(",")[0]
    new = push(shared, "feed", make_zip(f"# {uuid4()}")).json()["sha256"]
    clock.text = text.replace(old, new)
    clock.deploy()
    promoted = shared.user.post(f"/v1/dags/{clock.name}/promote", json={})
    assert promoted.status_code in (200, 409), promoted.text
    shared.live.drain()
    late = shared.complete(second)
    assert late.status_code == 409, late.text  # its events would belong to the old generation
    for task_id in (running, waiting):
        attempt = shared.claimed(task_id)
        assert attempt.claimed["task"]["udf"]["sha256"] == new
    assert count_events(clock) == 2  # the event of the first task was copied


def test_a_backfill_of_a_source_with_a_function_is_refused(shared: Bench) -> None:
    clock, _ = make_dag(shared, MANUAL)
    body = {"dag": clock.name, "job": "feed", "start": 0, "end": 9}
    reply = shared.user.post("/v1/backfills", json=body)
    assert reply.status_code == 409, reply.text
    assert "runs a function, which chooses the blocks" in reply.json()["detail"]
