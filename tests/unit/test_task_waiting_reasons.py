"""Explanations why a task is not running."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from trace_etl.policy.waiting_reasons import TaskFacts, explain_task

NOW = datetime(2026, 11, 15, 12, 30, 0, tzinfo=UTC)
QUEUED = TaskFacts(
    status="Queued",
    runtime="ecs_python",
    queued_at=NOW,
    retry_at=None,
    attempt=1,
    max_attempts=3,
    cancel_requested=False,
    paused_at=None,
    paused_by=None,
    max_concurrency=None,
    running_in_job=0,
    error_message=None,
    operator_cap=None,
    running_of_operator=0,
    held_by=None,
)
SINCE = "queued since 2026-11-15 12:30:00Z"


def test_a_queued_task_waits_for_a_free_slot_by_default():
    assert explain_task(QUEUED, True) == f"{SINCE}: waiting for a free worker slot"


def test_times_are_shown_in_utc():
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert str(explain_task(replace(QUEUED, queued_at=elsewhere), True)).startswith(SINCE)


def test_the_reason_of_a_paused_job_names_the_cause_of_the_pause():
    later = NOW + timedelta(minutes=1)
    paused = replace(QUEUED, paused_at=later, paused_by="backpressure of receivers")
    expected = "paused by backpressure of receivers since 2026-11-15 12:31:00Z"
    assert explain_task(paused, True) == expected


def test_the_reason_names_the_jobs_max_concurrency_when_it_is_reached():
    full = replace(QUEUED, max_concurrency=2, running_in_job=2)
    assert explain_task(full, True) == f"{SINCE}: the job's max_concurrency of 2 is reached"
    assert "max_concurrency" not in str(explain_task(replace(full, running_in_job=1), True))


def test_the_reason_names_a_runtime_without_workers():
    assert explain_task(QUEUED, False) == (f"{SINCE}: no worker is ready for runtime ecs_python")


def test_the_reason_says_that_the_queue_does_not_answer():
    assert explain_task(QUEUED, None) == (
        f"{SINCE}: the queue does not answer, so no worker can be woken"
    )


def test_the_reason_of_a_failed_task_names_the_retry_time_and_the_error():
    failed = replace(QUEUED, status="Failed", retry_at=NOW, error_message="boom")
    assert explain_task(failed, True) == "retry at 2026-11-15 12:30:00Z (attempt 1 failed: boom)"


def test_the_reason_of_a_permanently_failed_task_says_so():
    failed = replace(QUEUED, status="Failed", attempt=3, error_message=None)
    assert (
        explain_task(failed, True)
        == "failed permanently at attempt 3 of 3: the worker gave no reason"
    )


def test_a_running_task_has_a_reason_only_when_its_cancellation_is_requested():
    running = replace(QUEUED, status="Running")
    assert explain_task(running, True) is None
    assert (
        explain_task(replace(running, cancel_requested=True), True)
        == "running, cancellation requested"
    )


@pytest.mark.parametrize("status", ["Completed", "Canceled"])
def test_an_ended_task_has_no_reason(status):
    assert explain_task(replace(QUEUED, status=status), True) is None


def test_a_pause_is_reported_before_a_cap_and_a_cap_before_missing_workers():
    everything = replace(
        QUEUED,
        paused_at=NOW,
        paused_by="me",
        max_concurrency=1,
        running_in_job=1,
    )
    assert str(explain_task(everything, False)).startswith("paused by me")
    capped = replace(everything, paused_at=None, paused_by=None)
    assert "max_concurrency" in str(explain_task(capped, False))


def test_the_reason_names_the_operators_cap_when_it_is_reached():
    full = replace(QUEUED, operator_cap=2, running_of_operator=2)
    assert str(explain_task(full, True)).endswith(
        ": the operator's cap of 2 over all jobs is reached"
    )
    assert "cap" not in str(explain_task(replace(full, running_of_operator=1), True))
