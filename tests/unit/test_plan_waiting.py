"""Why a task is not running, in words."""

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
    runtime_has_workers=True,
    error_message=None,
)
SINCE = "queued since 2026-11-15 12:30:00Z"


def test_a_queued_task_waits_for_a_slot_when_nothing_else_is_in_its_way():
    assert explain_task(QUEUED) == f"{SINCE}: waiting for a free worker slot"


def test_times_are_utc_whatever_clock_they_were_read_on():
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert str(explain_task(replace(QUEUED, queued_at=elsewhere))).startswith(SINCE)


def test_a_task_of_a_paused_job_names_who_paused_it():
    later = NOW + timedelta(minutes=1)
    paused = replace(QUEUED, paused_at=later, paused_by="backpressure of receivers")
    expected = "paused by backpressure of receivers since 2026-11-15 12:31:00Z"
    assert explain_task(paused) == expected


def test_a_task_at_its_jobs_cap_says_so():
    full = replace(QUEUED, max_concurrency=2, running_in_job=2)
    assert explain_task(full) == f"{SINCE}: the job's max_concurrency of 2 is reached"
    assert "max_concurrency" not in str(explain_task(replace(full, running_in_job=1)))


def test_a_runtime_without_workers_is_named():
    assert explain_task(replace(QUEUED, runtime_has_workers=False)) == (
        f"{SINCE}: no worker for runtime ecs_python"
    )


def test_a_queue_that_does_not_answer_is_the_reason():
    assert explain_task(replace(QUEUED, runtime_has_workers=None)) == (
        f"{SINCE}: the queue does not answer, so no worker can be woken"
    )


def test_a_failed_task_says_when_it_is_tried_again_and_why_it_failed():
    failed = replace(QUEUED, status="Failed", retry_at=NOW, error_message="boom")
    assert explain_task(failed) == "retry at 2026-11-15 12:30:00Z (attempt 1 failed: boom)"


def test_a_task_that_failed_for_good_says_so():
    failed = replace(QUEUED, status="Failed", attempt=3, error_message=None)
    assert explain_task(failed) == "failed for good at attempt 3 of 3: no reason was given"


def test_a_running_task_has_a_reason_only_when_it_is_to_stop():
    running = replace(QUEUED, status="Running")
    assert explain_task(running) is None
    assert explain_task(replace(running, cancel_requested=True)) == "running, asked to stop"


@pytest.mark.parametrize("status", ["Completed", "Canceled"])
def test_what_has_ended_waits_for_nothing(status):
    assert explain_task(replace(QUEUED, status=status)) is None


def test_a_pause_comes_before_a_cap_and_a_cap_before_missing_workers():
    everything = replace(
        QUEUED,
        paused_at=NOW,
        paused_by="me",
        max_concurrency=1,
        running_in_job=1,
        runtime_has_workers=False,
    )
    assert str(explain_task(everything)).startswith("paused by me")
    capped = replace(everything, paused_at=None, paused_by=None)
    assert "max_concurrency" in str(explain_task(capped))


def test_a_task_turned_away_by_its_operators_cap_says_so():
    full = replace(QUEUED, operator_cap=2, running_of_operator=2)
    assert str(explain_task(full)).endswith(": the operator's cap of 2 is reached, over all jobs")
    assert "cap" not in str(explain_task(replace(full, running_of_operator=1)))
