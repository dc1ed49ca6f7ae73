"""`GET /internal/task-fetch`: read-only; a worker learns from it that its task was canceled."""

from uuid import uuid4

import pytest

from support.lifecycle.lifecycle import Bench


def test_fetch_returns_the_same_payload_as_a_claim(shared: Bench) -> None:
    (task_id,) = shared.tasks()
    before = shared.row(task_id)
    reply = shared.fetch(task_id)
    assert reply.status_code == 200
    body = reply.json()
    assert (body["task_id"], body["status"], body["attempt"]) == (task_id, "Queued", 1)
    assert shared.row(task_id) == before
    assert shared.claimed(task_id).claimed["task"] == body["task"]


def test_fetch_returns_neither_lease_nor_token(shared: Bench) -> None:
    attempt = shared.attempt()
    text = shared.fetch(attempt.task_id).text
    assert attempt.claimed["lease_token"] not in text
    assert attempt.token not in text


@pytest.mark.parametrize("end", ["Completed", "Failed", "Canceled"])
def test_fetch_returns_the_final_status_of_a_task(shared: Bench, end: str) -> None:
    attempt = shared.attempt()
    shared.complete(attempt, end)
    assert shared.fetch(attempt.task_id).json()["status"] == end


def test_a_canceled_task_is_returned_as_canceled(shared: Bench) -> None:
    (task_id,) = shared.tasks()
    shared.cancel(task_id)
    assert shared.fetch(task_id).json()["status"] == "Canceled"


def test_a_running_task_with_a_cancel_request_is_returned_as_canceled(
    shared: Bench,
) -> None:
    attempt = shared.attempt()
    assert shared.fetch(attempt.task_id).json()["status"] == "Running"
    shared.cancel(attempt.task_id)
    body = shared.fetch(attempt.task_id).json()
    assert (body["status"], body["cancel_requested"]) == ("Canceled", True)
    assert shared.status(attempt.task_id) == "Running"
    reply = shared.complete(attempt, "Canceled")
    assert (reply.status_code, reply.json()["task_status"]) == (200, "Canceled")
    assert shared.status(attempt.task_id) == "Canceled"


def test_a_task_that_completed_despite_a_cancel_request_is_returned_as_completed(
    shared: Bench,
) -> None:
    attempt = shared.attempt()
    shared.cancel(attempt.task_id)
    shared.complete(attempt, "Completed")
    assert shared.fetch(attempt.task_id).json()["status"] == "Completed"


def test_a_task_of_a_retired_definition_is_returned_as_canceled(shared: Bench) -> None:
    dag = shared.dag()
    running, waiting = shared.tasks(2, dag=dag)
    shared.claimed(running)
    shared.dag(name=dag.name, column="2")
    assert shared.fetch(running).json()["status"] == "Canceled"
    assert shared.fetch(waiting).json()["status"] == "Canceled"


def test_fetch_of_an_unknown_task_is_not_found(shared: Bench) -> None:
    reply = shared.fetch(str(uuid4()))
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("query", ["", "?task_id=", "?task_id=7", "?task_id=a&task_id=b"])
def test_fetch_without_a_task_id_is_refused_with_the_field(shared: Bench, query: str) -> None:
    reply = shared.http.get(f"/internal/task-fetch{query}", headers=shared.worker_headers)
    assert reply.status_code == 422
    assert [e["field"] for e in reply.json()["errors"]] == ["task_id"]


def test_fetch_needs_a_worker_token(shared: Bench) -> None:
    attempt = shared.attempt()
    reply = shared.http.get(
        "/internal/task-fetch",
        params={"task_id": attempt.task_id},
        headers={"X-Trace-Task-Capability": attempt.token},
    )
    assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated")
