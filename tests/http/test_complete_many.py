"""`POST /internal/task-complete-many`: several independent completions in one call."""

from typing import Any

import httpx

from support.lifecycle.lifecycle import Attempt, Bench

PATH = "/internal/task-complete-many"


def report(attempt: Attempt, **fields: Any) -> dict[str, Any]:
    defaults = {"capability_token": attempt.token, "status": "Completed"}
    return {**attempt.fence, **defaults, **fields}


def send(bench: Bench, *completions: dict[str, Any]) -> httpx.Response:
    return bench.http.post(
        PATH, json={"completions": list(completions)}, headers=bench.worker_headers
    )


def test_each_completion_is_answered_in_request_order(shared: Bench) -> None:
    attempts = [shared.claimed(task_id) for task_id in shared.tasks(3)]
    ends = ["Completed", "Canceled", "Failed"]
    reply = send(shared, *(report(a, status=end) for a, end in zip(attempts, ends, strict=True)))
    assert reply.status_code == 200, reply.text
    assert [r["task_status"] for r in reply.json()["results"]] == ends
    assert [shared.status(a.task_id) for a in attempts] == ends


def test_events_and_publications_commit_like_in_the_single_call(shared: Bench) -> None:
    first, second = (shared.attempt(dag=shared.dag()) for _ in range(2))
    published = shared.write_output(first, rows=7)
    reply = send(
        shared,
        report(first, datasets_published=[published], events=[first.event()]),
        report(second, events=[second.event()]),
    )
    assert [r["status"] for r in reply.json()["results"]] == ["Accepted", "Accepted"]
    (partition,) = shared.rows("SELECT * FROM partitions WHERE task_id = %s", first.task_id)
    assert partition["row_count"] == 7
    for attempt in (first, second):
        events = "SELECT * FROM events WHERE producer_task_id = %s"
        assert len(shared.rows(events, attempt.task_id)) == 1


def test_a_refused_completion_does_not_affect_the_others(shared: Bench) -> None:
    stale, foreign, good = (shared.claimed(task_id) for task_id in shared.tasks(3))
    stale_fence = {"lease_token": foreign.fence["lease_token"]}
    reply = send(
        shared,
        report(stale, **stale_fence),
        report(foreign, capability_token=good.token),
        report(foreign, capability_token="nonsense"),
        report(good),
    )
    results = reply.json()["results"]
    assert [r["status"] for r in results] == ["Refused", "Refused", "Refused", "Accepted"]
    problems = [(r["problem"]["status"], r["problem"]["code"]) for r in results[:3]]
    assert problems == [(409, "lease_lost"), (403, "forbidden"), (401, "unauthenticated")]
    assert [shared.status(a.task_id) for a in (stale, foreign)] == ["Running", "Running"]
    assert shared.status(good.task_id) == "Completed"


def test_a_completion_can_be_repeated_over_the_single_call(shared: Bench) -> None:
    attempt = shared.attempt()
    assert send(shared, report(attempt)).json()["results"][0]["status"] == "Accepted"
    assert shared.complete(attempt).status_code == 200
    other = send(shared, report(attempt, error_message="another")).json()["results"][0]
    assert other["problem"]["code"] == "completion_mismatch"


def test_a_duplicate_in_one_call_takes_effect_once(shared: Bench) -> None:
    attempt = shared.attempt(dag=shared.dag())
    twice = [report(attempt, events=[attempt.event()])] * 2
    results = send(shared, *twice).json()["results"]
    assert [r["status"] for r in results] == ["Accepted", "Accepted"]
    events = "SELECT * FROM events WHERE producer_task_id = %s"
    assert len(shared.rows(events, attempt.task_id)) == 1


def test_the_call_needs_a_worker_token(shared: Bench) -> None:
    attempt = shared.attempt()
    body = {"completions": [report(attempt)]}
    assert shared.http.post(PATH, json=body).status_code == 401
    headers = {"X-Trace-Task-Capability": attempt.token}
    assert shared.http.post(PATH, json=body, headers=headers).status_code == 401
    assert shared.status(attempt.task_id) == "Running"


def test_a_malformed_completion_refuses_the_whole_call_with_its_field(shared: Bench) -> None:
    good, bad = (shared.claimed(task_id) for task_id in shared.tasks(2))
    reply = send(shared, report(good), report(bad, colour="red"))
    assert reply.status_code == 422
    assert [e["field"] for e in reply.json()["errors"]] == ["completions.1.colour"]
    assert send(shared).status_code == 422
    assert [shared.status(a.task_id) for a in (good, bad)] == ["Running", "Running"]
