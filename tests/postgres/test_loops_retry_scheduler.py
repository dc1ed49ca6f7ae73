"""The retry scheduler queues the next attempt of a failed task when its retry is due."""

from dataclasses import replace
from datetime import timedelta

from support.lifecycle.lifecycle import Bench, run_behind_lock


def fail_a_task(bench: Bench, options: str = "") -> str:
    attempt = bench.attempt(options)
    assert bench.complete(attempt, "Failed", error_message="boom").status_code == 200
    return attempt.task_id


def test_a_due_retry_queues_the_next_attempt_without_a_lease_and_wakes_a_worker(
    one: Bench,
) -> None:
    task_id = fail_a_task(one)
    before = one.messages("ecs_python").count({"task_id": task_id})
    one.let_retry_fall_due(task_id)
    assert one.start_retries() == 1
    row = one.row(task_id)
    assert (row["status"], row["attempt"], row["retry_at"]) == ("Queued", 2, None)
    for column in ("lease_token", "lease_expires_at", "deadline_at", "worker_id", "started_at"):
        assert row[column] is None
    one.live.drain()
    assert one.messages("ecs_python").count({"task_id": task_id}) == before + 1


def test_a_retry_that_is_not_due_waits(one: Bench) -> None:
    task_id = fail_a_task(one)
    before = one.row(task_id)
    assert one.start_retries() == 0
    assert one.row(task_id) == before
    due = one.live.run(one.live.service.retries.next_due)
    assert timedelta(0) < due <= timedelta(seconds=45)
    one.cancel(task_id)


def test_retry_delays_double_within_their_jitter(one: Bench) -> None:
    attempt = one.attempt("max_attempts: 5")
    for n, base in enumerate((30, 60, 120, 240), start=1):
        assert attempt.number == n
        one.complete(attempt, "Failed")
        query = "SELECT ended_at FROM task_attempts WHERE task_id = %s AND attempt = %s"
        (record,) = one.rows(query, attempt.task_id, n)
        wait = one.row(attempt.task_id)["retry_at"] - record["ended_at"]
        assert timedelta(seconds=base * 0.5) <= wait <= timedelta(seconds=base * 1.5)
        attempt = one.next_attempt(attempt)
    one.complete(attempt, "Failed")
    assert one.row(attempt.task_id)["retry_at"] is None


def test_retry_delays_differ_so_that_failed_tasks_do_not_restart_together(one: Bench) -> None:
    attempts = [one.claimed(task_id) for task_id in one.tasks(12)]
    for attempt in attempts:
        one.complete(attempt, "Failed")
    waits = set()
    for attempt in attempts:
        row = one.row(attempt.task_id)
        waits.add(row["retry_at"])
        one.cancel(attempt.task_id)
    assert len(waits) > 6


def test_a_canceled_task_is_not_retried(one: Bench) -> None:
    task_id = fail_a_task(one)
    assert one.cancel(task_id).json()["status"] == "Canceled"
    one.let_retry_fall_due(task_id)
    assert one.start_retries() == 0
    assert one.status(task_id) == "Canceled"


def test_an_inline_job_is_retried_in_the_dispatcher(one: Bench) -> None:
    """`runtime: dispatcher` has no queue: its next attempt also starts through the outbox."""
    dag = one.dag()
    one.tasks(1, dag=dag)
    query = {"dag": dag.name, "job": "split"}
    (item,) = one.user.get("/v1/tasks", params=query).json()["items"]
    again = """
        UPDATE tasks SET status = 'Failed', retry_at = now(), completion_hash = NULL,
               finished_at = NULL WHERE task_id = %s
    """
    one.rows(again, item["task_id"])
    assert one.start_retries() == 1
    one.live.drain()
    row = one.row(item["task_id"])
    assert (row["status"], row["attempt"]) == ("Completed", 2)


def test_a_pass_is_bounded_and_schedulers_of_two_replicas_start_each_attempt_once(
    replicas: list[Bench],
) -> None:
    first, second = replicas
    ids = first.tasks(40)
    for task_id in ids:
        first.complete(first.claimed(task_id), "Failed")
        first.let_retry_fall_due(task_id)
    small = replace(first.live.service.retries, batch_size=3)
    assert first.live.run(small.retry_once) == 3
    lock = "LOCK TABLE outbox IN SHARE MODE"  # both wait where they insert the wake-up
    schedulers = [first.start_retries, second.start_retries]
    assert sum(run_behind_lock(first.live.dsns.state, lock, schedulers)) == 37
    assert {first.row(task_id)["attempt"] for task_id in ids} == {2}
    woken = "SELECT subject FROM outbox WHERE kind = 'wake_up' AND subject = ANY(%s::uuid[])"
    assert len(first.rows(woken, ids)) == 40
