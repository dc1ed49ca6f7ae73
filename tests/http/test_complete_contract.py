"""`POST /v1/task/complete`: ends an attempt once, with its outputs, events and publications."""

from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from support.lifecycle.lifecycle import Attempt, Bench

PATHS = ["/v1/task/complete", "/internal/task-complete"]


def ended_attempts(bench: Bench, attempt: Attempt) -> list[dict]:
    query = "SELECT * FROM task_attempts WHERE task_id = %s ORDER BY attempt"
    return bench.rows(query, attempt.task_id)


def events_of(bench: Bench, attempt: Attempt) -> list[dict]:
    return bench.rows("SELECT * FROM events WHERE producer_task_id = %s", attempt.task_id)


# --- the three outcomes -------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_a_completed_attempt_ends_the_task(shared: Bench, path: str) -> None:
    attempt = shared.attempt()
    reply = shared.call(path, attempt, status="Completed")
    assert reply.status_code == 200, reply.text
    assert reply.json() == {"status": "Accepted", "task_status": "Completed"}
    row = shared.row(attempt.task_id)
    assert row["status"] == "Completed"
    assert row["finished_at"] is not None
    assert row["retry_at"] is None
    (record,) = ended_attempts(shared, attempt)
    assert (record["attempt"], record["outcome"], record["worker_id"]) == (1, "Completed", "w1")


@pytest.mark.parametrize("level", ["namespaces", "lambda", None])
@pytest.mark.parametrize("status", ["Completed", "Failed"])
def test_an_attempt_records_how_its_code_was_isolated(
    shared: Bench, status: str, level: str | None
) -> None:
    attempt = shared.attempt()
    assert shared.complete(attempt, status, isolation=level).status_code == 200
    detail = shared.user.get(f"/v1/tasks/{attempt.task_id}").json()
    assert [ended["isolation"] for ended in detail["attempts"]] == [level]


@pytest.mark.parametrize("status", ["Completed", "Failed", "Canceled"])
def test_an_isolation_of_a_heartbeat_is_recorded_with_the_attempt(
    shared: Bench, status: str
) -> None:
    attempt = shared.attempt()
    assert shared.heartbeat(attempt, isolation="namespaces").status_code == 200
    assert shared.complete(attempt, status).status_code == 200
    detail = shared.user.get(f"/v1/tasks/{attempt.task_id}").json()
    assert [ended["isolation"] for ended in detail["attempts"]] == ["namespaces"]


def test_an_unknown_isolation_is_refused(shared: Bench) -> None:
    reply = shared.complete(shared.attempt(), isolation="none")
    assert reply.status_code == 422 and "isolation" in reply.text


def test_outputs_events_and_publications_commit_together(shared: Bench) -> None:
    dag = shared.dag()
    attempt = shared.attempt(dag=dag)
    published = shared.write_output(attempt, rows=42)
    output = {
        "output_index": 0,
        "dataset_uuid": attempt.output["dataset_uuid"],
        "dataset_version": attempt.output["dataset_version"],
        "location": "s3://somewhere",
        "row_count": 42,
    }
    published["config_hash"] = "sha256:abc"
    reply = shared.complete(
        attempt, outputs=[output], datasets_published=[published], events=[attempt.event()]
    )
    assert reply.status_code == 200, reply.text
    task = shared.user.get(f"/v1/tasks/{attempt.task_id}").json()
    unset = dict.fromkeys(("cursor", "partition_key", "byte_count"))
    assert task["attempts"][0]["outputs"] == [{**output, **unset}]
    (item,) = shared.user.get(f"/v1/datasets/{dag.published}").json()["partition_list"]
    assert item["config_hash"] == "sha256:abc"
    (partition,) = shared.rows("SELECT * FROM partitions WHERE task_id = %s", attempt.task_id)
    assert partition["partition_key"] == attempt.scope["partition_key"]
    assert (partition["row_count"], partition["attempt"]) == (42, 1)
    assert partition["storage_ref"] == published["storage_ref"]
    (event,) = events_of(shared, attempt)
    assert shared.rows("SELECT 1 FROM outbox WHERE subject = %s", event["event_id"])
    shared.live.drain()
    assert len(shared.waiting(dag, "after")) == 1


def test_outputs_without_events_are_kept_with_their_attempt(shared: Bench) -> None:
    """Also of a late completion, which replaces what the lease reaper recorded."""
    location = f"postgres_table:dataset_{uuid4().hex}"
    for is_late in (False, True):
        attempt = shared.reaped() if is_late else shared.attempt()
        uuids = {n: attempt.output[n] for n in ("dataset_uuid", "dataset_version")}
        output = {**uuids, "location": location, "cursor": 12345, "row_count": 20000}
        assert shared.complete(attempt, outputs=[output]).status_code == 200
        (ended,) = shared.user.get(f"/v1/tasks/{attempt.task_id}").json()["attempts"]
        assert ended["outcome"] == "Completed"
        assert [
            {name: value for name, value in found.items() if value is not None}
            for found in ended["outputs"]
        ] == [output]


def test_a_failed_attempt_waits_for_its_retry_within_the_jitter(shared: Bench) -> None:
    attempt = shared.attempt()
    reply = shared.complete(attempt, "Failed", error_message="boom", error_code="rpc_down")
    assert reply.json() == {"status": "Accepted", "task_status": "Failed"}
    row = shared.row(attempt.task_id)
    (record,) = ended_attempts(shared, attempt)
    wait = row["retry_at"] - record["ended_at"]
    assert timedelta(seconds=15) <= wait <= timedelta(seconds=45)
    assert row["finished_at"] is None
    assert (row["error_message"], row["error_code"]) == ("boom", "rpc_down")
    assert (record["outcome"], record["error_message"]) == ("Failed", "boom")


def test_a_failure_that_is_not_retryable_is_final(shared: Bench) -> None:
    attempt = shared.attempt()
    shared.complete(attempt, "Failed", retryable=False)
    row = shared.row(attempt.task_id)
    assert (row["status"], row["retry_at"]) == ("Failed", None)
    assert row["finished_at"] is not None
    shared.start_retries()
    assert shared.row(attempt.task_id)["status"] == "Failed"
    assert shared.row(attempt.task_id) == row


def test_a_task_is_attempted_at_most_max_attempts_times(shared: Bench) -> None:
    attempt = shared.attempt("max_attempts: 2")
    shared.complete(attempt, "Failed")
    attempt = shared.next_attempt(attempt)
    assert attempt.number == 2
    shared.complete(attempt, "Failed")
    row = shared.row(attempt.task_id)
    assert (row["status"], row["attempt"], row["retry_at"]) == ("Failed", 2, None)
    assert [r["attempt"] for r in ended_attempts(shared, attempt)] == [1, 2]


def test_a_premature_attempt_does_not_count(shared: Bench) -> None:
    attempt = shared.attempt("max_attempts: 1")
    for number in (2, 3):
        shared.complete(attempt, "Failed", error_code="not_final", premature=True)
        assert shared.row(attempt.task_id)["retry_at"] is not None
        attempt = shared.next_attempt(attempt)
        assert attempt.number == number
    shared.complete(attempt, "Failed")
    row = shared.row(attempt.task_id)
    assert (row["status"], row["retry_at"]) == ("Failed", None)
    final = shared.attempt("max_attempts: 1")
    shared.complete(final, "Failed", premature=True, retryable=False)
    assert shared.row(final.task_id)["retry_at"] is None


def test_a_canceled_attempt_ends_the_task(shared: Bench) -> None:
    attempt = shared.attempt()
    shared.cancel(attempt.task_id)
    reply = shared.complete(attempt, "Canceled", error_message="asked to stop")
    assert reply.json()["task_status"] == "Canceled"
    row = shared.row(attempt.task_id)
    assert (row["status"], row["retry_at"]) == ("Canceled", None)


def test_a_failure_after_a_cancel_request_ends_the_task_as_canceled(shared: Bench) -> None:
    attempt = shared.attempt()
    shared.cancel(attempt.task_id)
    assert shared.complete(attempt, "Failed").json()["task_status"] == "Canceled"
    assert shared.row(attempt.task_id)["retry_at"] is None


def test_a_completion_after_a_cancel_request_is_accepted(shared: Bench) -> None:
    attempt = shared.attempt()
    shared.cancel(attempt.task_id)
    assert shared.complete(attempt, events=[attempt.event()]).json()["task_status"] == "Completed"
    assert len(events_of(shared, attempt)) == 1


@pytest.mark.parametrize("status", ["Failed", "Canceled"])
def test_a_failed_or_canceled_attempt_cannot_emit_events(shared: Bench, status: str) -> None:
    attempt = shared.attempt()
    reply = shared.complete(attempt, status, events=[attempt.event()])
    assert reply.status_code == 422
    assert shared.status(attempt.task_id) == "Running"
    assert events_of(shared, attempt) == []


# --- repetitions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["Completed", "Failed", "Canceled"])
def test_a_repeated_completion_is_accepted_and_changes_nothing(shared: Bench, status: str) -> None:
    attempt = shared.attempt()
    fields = {"events": [attempt.event()]} if status == "Completed" else {"error_message": "x"}
    first = shared.complete(attempt, status, **fields)
    before = shared.dump()
    second = shared.complete(attempt, status, **fields)
    assert (second.status_code, second.json()) == (first.status_code, first.json())
    assert shared.dump() == before


def test_a_repeated_completion_with_publications_changes_nothing(shared: Bench) -> None:
    attempt = shared.attempt()
    fields = {"datasets_published": [shared.write_output(attempt)], "events": [attempt.event()]}
    assert shared.complete(attempt, **fields).status_code == 200
    before = shared.dump()
    assert shared.complete(attempt, **fields).status_code == 200
    assert shared.dump() == before


@pytest.mark.parametrize(
    "other",
    [
        {"status": "Failed"},
        {"status": "Canceled"},
        {"events": []},
        {"error_message": "something else"},
    ],
)
def test_a_second_completion_with_different_content_is_a_conflict(
    shared: Bench, other: dict
) -> None:
    attempt = shared.attempt()
    body = {"status": "Completed", "events": [attempt.event()]}
    assert shared.call("/v1/task/complete", attempt, **body).status_code == 200
    before = shared.dump()
    other = {"events": []} | other if other.get("status") else other
    reply = shared.call("/v1/task/complete", attempt, **{**body, **other})
    assert (reply.status_code, reply.json()["code"]) == (409, "completion_mismatch")
    assert shared.dump() == before


def test_a_completion_can_be_repeated_over_the_other_path(shared: Bench) -> None:
    attempt = shared.attempt()
    assert shared.call(PATHS[0], attempt, status="Completed").status_code == 200
    assert shared.call(PATHS[1], attempt, status="Completed").status_code == 200
    assert shared.call(PATHS[1], attempt, status="Failed").status_code == 409


# --- the fence --------------------------------------------------------------------------------


def test_a_completion_with_another_lease_is_refused(shared: Bench) -> None:
    attempt = shared.attempt()
    before = shared.dump()
    reply = shared.complete(attempt, lease_token=str(uuid4()), events=[attempt.event()])
    assert (reply.status_code, reply.json()["code"]) == (409, "lease_lost")
    assert reply.json()["reason"] == "stale_lease"
    assert shared.dump() == before


def test_a_completion_of_an_older_attempt_is_refused(shared: Bench) -> None:
    first = shared.attempt()
    published = shared.write_output(first)
    shared.complete(first, "Failed")
    shared.next_attempt(first)
    before = shared.dump()
    reply = shared.complete(first, events=[first.event()], datasets_published=[published])
    assert (reply.status_code, reply.json()["reason"]) == (409, "stale_attempt")
    assert shared.dump() == before


def test_a_late_completion_of_a_reaped_attempt_is_accepted(shared: Bench) -> None:
    attempt = shared.reaped()
    assert shared.status(attempt.task_id) == "Failed"
    published = shared.write_output(attempt)
    reply = shared.complete(attempt, events=[attempt.event()], datasets_published=[published])
    assert reply.json() == {"status": "Accepted", "task_status": "Completed"}
    row = shared.row(attempt.task_id)
    assert (row["status"], row["retry_at"], row["cause"]) == ("Completed", None, None)
    assert len(events_of(shared, attempt)) == 1
    shared.start_retries()
    assert shared.row(attempt.task_id)["status"] == "Completed"
    (record,) = ended_attempts(shared, attempt)
    assert record["outcome"] == "Completed"


def test_a_late_completion_of_the_last_attempt_is_accepted(shared: Bench) -> None:
    attempt = shared.reaped("max_attempts: 1")
    assert shared.row(attempt.task_id)["retry_at"] is None
    assert shared.complete(attempt).json()["task_status"] == "Completed"


def test_a_late_failure_of_a_reaped_attempt_replaces_its_error(shared: Bench) -> None:
    attempt = shared.reaped()
    assert shared.complete(attempt, "Failed", error_message="late").status_code == 200
    row = shared.row(attempt.task_id)
    assert (row["status"], row["error_message"], row["cause"]) == ("Failed", "late", None)
    assert row["retry_at"] is not None


def test_a_late_completion_is_refused_once_the_next_attempt_is_queued(shared: Bench) -> None:
    attempt = shared.reaped()
    shared.let_retry_fall_due(attempt.task_id)
    shared.start_retries()
    before = shared.dump()
    reply = shared.complete(attempt, events=[attempt.event()])
    assert (reply.status_code, reply.json()["reason"]) == (409, "stale_attempt")
    assert shared.dump() == before


def test_a_late_completion_can_be_repeated(shared: Bench) -> None:
    attempt = shared.reaped()
    shared.complete(attempt, events=[attempt.event()])
    before = shared.dump()
    assert shared.complete(attempt, events=[attempt.event()]).status_code == 200
    assert shared.complete(attempt, "Failed").json()["code"] == "completion_mismatch"
    assert shared.dump() == before


def test_a_task_canceled_while_waiting_for_a_retry_stays_canceled(shared: Bench) -> None:
    attempt = shared.reaped()
    assert shared.cancel(attempt.task_id).json()["status"] == "Canceled"
    before = shared.dump()
    reply = shared.complete(attempt, events=[attempt.event()])
    assert (reply.status_code, reply.json()["reason"]) == (409, "not_running")
    assert shared.dump() == before


def test_a_reported_failure_cannot_be_turned_into_success(
    shared: Bench,
) -> None:
    attempt = shared.attempt()
    shared.complete(attempt, "Failed", error_message="x")
    before = shared.dump()
    assert shared.complete(attempt).json()["code"] == "completion_mismatch"
    assert shared.dump() == before


# --- permissions --------------------------------------------------------------------------------


def test_a_dataset_of_another_job_is_forbidden_and_the_attempt_continues(shared: Bench) -> None:
    attempt, other = shared.attempt(), shared.attempt()
    published = shared.write_output(other)
    location = {"dataset_uuid": other.output["dataset_uuid"], "location": "s3://x"}
    before = shared.dump()
    for fields in (
        {"datasets_published": [published]},
        {"events": [other.event()]},
        {"outputs": [location]},
    ):
        reply = shared.complete(attempt, **fields)
        assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")
    assert shared.dump() == before


def test_a_task_cannot_emit_events_for_its_input(shared: Bench) -> None:
    dag = shared.dag()
    attempt = shared.attempt(dag=dag)
    source = dag.datasets["split"]
    event = {"dataset_uuid": source["dataset_uuid"], "cursor": 1}
    assert shared.complete(attempt, events=[event]).status_code == 403


@pytest.mark.parametrize(
    "change",
    [
        {"prefix": "cold/datasets/another/job/"},
        {"bucket": "other"},
        {"scheme": "s3"},
    ],
)
def test_only_the_attempts_own_prefix_can_be_published(shared: Bench, change: dict) -> None:
    attempt = shared.attempt()
    published = shared.write_output(attempt)
    before = shared.dump()
    published["storage_ref"] = {**published["storage_ref"], **change}
    reply = shared.complete(attempt, datasets_published=[published])
    assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")
    assert shared.dump() == before


@pytest.mark.parametrize(("start", "end"), [(0, 99), (5, 14), (20, 29)])
def test_blocks_outside_the_tasks_range_cannot_be_published(
    shared: Bench, start: int, end: int
) -> None:
    neighbour, attempt = (shared.claimed(task_id) for task_id in shared.tasks(2))
    if attempt.scope["start"] == 0:
        neighbour, attempt = attempt, neighbour
    published = shared.write_output(neighbour)
    assert shared.complete(neighbour, datasets_published=[published]).status_code == 200
    before = shared.dump()
    wide = {**shared.write_output(attempt), "range_start": start, "range_end": end}
    reply = shared.complete(attempt, datasets_published=[wide], events=[attempt.event()])
    assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")
    assert shared.dump() == before


def test_a_part_of_the_tasks_range_can_be_published(shared: Bench) -> None:
    attempt = shared.attempt()
    part = {**shared.write_output(attempt), "range_start": 2, "range_end": 7}
    assert shared.complete(attempt, datasets_published=[part]).status_code == 200


def test_another_version_of_the_dataset_is_forbidden(shared: Bench) -> None:
    attempt = shared.attempt()
    published = {**shared.write_output(attempt), "dataset_version": str(uuid4())}
    assert shared.complete(attempt, datasets_published=[published]).status_code == 403


def test_a_prefix_without_its_marker_cannot_be_published(shared: Bench) -> None:
    attempt = shared.attempt()
    published = shared.write_output(attempt)
    ref = published["storage_ref"]
    marker = Path(shared.live.objects, ref["bucket"], ref["prefix"], "_SUCCESS")
    marker.unlink()
    before = shared.dump()
    reply = shared.complete(attempt, datasets_published=[published])
    assert (reply.status_code, reply.json()["code"]) == (409, "output_not_ready")
    marker.write_text("{}")
    reply = shared.complete(attempt, datasets_published=[published])
    assert (reply.status_code, reply.json()["code"]) == (409, "output_not_ready")
    assert shared.dump() == before


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"status": "Done"}, "status"),
        ({"status": None}, "status"),
        ({"outputs": [{"dataset_uuid": str(uuid4())}]}, "outputs.0.location"),
        ({"events": [{"cursor": 1, "dataset_uuid": str(uuid4()), "x": 1}]}, "events.0.x"),
        ({"events": {"cursor": 1}}, "events"),
        ({"retryable": "no"}, "retryable"),
        ({"error_message": "\u0000"}, "error_message"),
        ({"error_message": "x" * 8193}, "error_message"),
        ({"result": {}}, "result"),
    ],
)
def test_a_malformed_completion_is_refused_with_the_field(
    shared: Bench, change: dict, field: str
) -> None:
    attempt = shared.attempt()
    reply = shared.call("/v1/task/complete", attempt, **{"status": "Completed", **change})
    assert reply.status_code == 422, reply.text
    assert [e["field"] for e in reply.json()["errors"]] == [field]
    assert shared.status(attempt.task_id) == "Running"
