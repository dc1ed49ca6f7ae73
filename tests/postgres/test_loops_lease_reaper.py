"""The lease reaper ends silent attempts, records the cause and accepts late completions."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from support.lifecycle.lifecycle import Attempt, Bench, run_behind_lock
from support.waiting import eventually
from trace_etl.dispatcher.loops.lease_reaper import LeaseReaper
from trace_etl.queues.pgqueue import PgQueue


@contextmanager
def listening_worker(bench: Bench, worker: str) -> Generator[None]:
    """A worker that listens on its queue, and then loses its connection."""
    consumer = PgQueue(bench.live.dsns.queue).consumer(["ecs_rust"], worker)
    consumer.receive(limit=1, visibility=timedelta(seconds=1))
    yield
    consumer._listen().close()


def let_deadline_pass(bench: Bench, attempt: Attempt) -> None:
    late = "UPDATE tasks SET deadline_at = now() - interval '1 second' WHERE task_id = %s"
    bench.rows(late, attempt.task_id)


def attempt_record(bench: Bench, attempt: Attempt) -> dict:
    query = "SELECT * FROM task_attempts WHERE task_id = %s AND attempt = %s"
    (record,) = bench.rows(query, attempt.task_id, attempt.number)
    return record


def claimed(bench: Bench, worker: str, options: str = "") -> Attempt:
    (task_id,) = bench.tasks(1, options)
    return bench.claimed(task_id, worker)


def test_a_silent_worker_that_still_listens_is_reported_as_lease_expired(one: Bench) -> None:
    attempt = claimed(one, "alive")
    one.let_lease_expire(attempt)
    with listening_worker(one, "alive"):
        assert one.reap() == 1
    row, record = one.row(attempt.task_id), attempt_record(one, attempt)
    assert (row["status"], row["cause"], record["cause"]) == ("Failed", *["lease_expired"] * 2)
    assert (record["outcome"], record["worker_id"]) == ("Failed", "alive")
    assert "alive" in record["error_message"]


def test_an_attempt_that_is_lost_records_how_its_code_was_isolated(one: Bench) -> None:
    started, unstarted = (claimed(one, "alive", "max_attempts: 2") for _ in range(2))
    assert one.heartbeat(started, isolation="lambda").status_code == 200
    assert one.heartbeat(started).status_code == 200  # a later one changes nothing
    assert one.heartbeat(unstarted).status_code == 200
    for attempt in (started, unstarted):
        one.let_lease_expire(attempt)
    assert one.reap() == 2
    levels = [attempt_record(one, attempt)["isolation"] for attempt in (started, unstarted)]
    assert levels == ["lambda", None]
    # The next attempt may end before its sandbox starts.
    one.rows("UPDATE tasks SET retry_at = now() WHERE task_id = %s", started.task_id)
    one.live.run(one.live.service.retries.retry_once)
    second = one.claimed(started.task_id)
    assert one.complete(second, "Failed").status_code == 200
    assert attempt_record(one, second)["isolation"] is None


def reaper_without_delay(bench: Bench) -> LeaseReaper:
    return replace(bench.live.service.reaper, gone_after=0.0, lost_since={})


def wait_until_lost(bench: Bench, worker: str) -> None:
    queue = bench.live.service.reaper.queue
    eventually(lambda: worker in bench.live.run(queue.lost_consumers), "the session has ended")


def test_the_attempt_of_a_worker_that_disconnects_is_retried_before_its_lease_expires(
    one: Bench,
) -> None:
    attempt = claimed(one, "killed")
    reaper = reaper_without_delay(one)
    with listening_worker(one, "killed"):
        assert one.live.run(reaper.reap_once) == 0
    wait_until_lost(one, "killed")
    patient = replace(reaper, gone_after=60.0, lost_since={})
    assert one.live.run(patient.reap_once) == 0  # the worker may return
    short = claimed(one, "killed")
    one.let_lease_expire(short)
    assert one.live.run(patient.reap_once) == 1  # a lease can be shorter
    assert attempt_record(one, short)["cause"] == "worker_gone"
    reaper.wake.retries.clear()
    assert one.live.run(reaper.reap_once) == 1
    row, record = one.row(attempt.task_id), attempt_record(one, attempt)
    assert (row["status"], record["cause"]) == ("Failed", "worker_gone")
    assert row["retry_at"] <= record["ended_at"]  # at once: the task is not to blame
    assert reaper.wake.retries.is_set()  # and not at the scheduler's next poll
    one.live.run(one.live.service.retries.retry_once)
    second = one.claimed(attempt.task_id)
    assert second.number == 2
    # The first attempt has lost its lease, if its worker still lives.
    assert one.heartbeat(attempt).status_code == 409
    assert one.complete(attempt, "Completed").status_code == 409
    with listening_worker(one, "killed-again"):
        one.rows("UPDATE tasks SET worker_id = 'killed-again' WHERE task_id = %s", second.task_id)
    wait_until_lost(one, "killed-again")
    assert one.live.run(reaper.reap_once) == 1
    row, record = one.row(second.task_id), attempt_record(one, second)
    assert row["retry_at"] - record["ended_at"] > timedelta(seconds=10)  # it may kill its workers


def test_a_worker_that_never_listened_keeps_its_lease_until_it_expires(one: Bench) -> None:
    attempt = claimed(one, "http-only")
    reaper = reaper_without_delay(one)
    assert one.live.run(reaper.reap_once) == 0
    one.let_lease_expire(attempt)
    assert one.live.run(reaper.reap_once) == 1
    assert attempt_record(one, attempt)["cause"] == "lease_expired"


def test_an_outage_gives_lost_workers_time_to_return(
    one: Bench, set_clock: Callable[[str], object]
) -> None:
    attempt = claimed(one, "returning")
    reaper = reaper_without_delay(one)
    with listening_worker(one, "returning"):
        pass
    wait_until_lost(one, "returning")
    set_clock("60 s")
    assert one.live.run(reaper.reap_once) == 0
    assert one.live.run(reaper.reap_once) == 0  # for the length of the grace
    assert one.heartbeat(attempt).status_code == 200
    one.complete(attempt)  # a later pass of another test would end it


@pytest.fixture
def set_clock(one: Bench) -> Generator[Callable[[str], object]]:
    """Let the last reaper pass of all replicas have been some time ago. The other tests have no outage."""
    query = "UPDATE lease_clock SET seen_at = now() + %s::interval"
    yield lambda ago: one.rows(query, f"-{ago}")
    one.rows(query, "100 years")


def seconds_left(bench: Bench, attempt: Attempt) -> float:
    query = "SELECT extract(epoch FROM lease_expires_at - now()) AS left FROM tasks"
    return bench.rows(f"{query} WHERE task_id = %s", attempt.task_id)[0]["left"]


@pytest.mark.parametrize(
    ("expired_ago", "outage", "expected"),
    [
        # Half a minute was left when the outage began; it is left again.
        ("70 s", "100 s", (20, 30)),
        # The lease ended before the outage.
        ("110 s", "100 s", None),
        # The pause between two passes is no outage.
        ("0.1 s", "1 s", None),
        # Less than the grace was left.
        ("99 s", "100 s", (10, 20)),
    ],
)
def test_time_without_heartbeats_does_not_count(
    one: Bench,
    set_clock: Callable[[str], object],
    expired_ago: str,
    outage: str,
    expected: tuple[float, float] | None,
) -> None:
    attempt = claimed(one, "w")
    late = "UPDATE tasks SET lease_expires_at = now() - %s::interval WHERE task_id = %s"
    one.rows(late, expired_ago, attempt.task_id)
    set_clock(outage)
    assert one.reap() == (expected is None)
    if expected is not None:
        assert expected[0] < seconds_left(one, attempt) <= expected[1]
        assert one.reap() == 0  # the outage is counted once
        assert seconds_left(one, attempt) <= expected[1]
        assert one.heartbeat(attempt).status_code == 200


def test_two_reapers_count_an_outage_once(
    replicas: list[Bench], set_clock: Callable[[str], object]
) -> None:
    first, second = replicas
    attempt = claimed(first, "w")
    first.rows(
        "UPDATE tasks SET lease_expires_at = now() - interval '970 s' WHERE task_id = %s",
        attempt.task_id,
    )
    set_clock("1000 s")
    lock = f"SELECT FROM tasks WHERE task_id = '{attempt.task_id}' FOR UPDATE"
    reaps = run_behind_lock(first.live.dsns.state, lock, [first.reap, second.reap])
    assert sum(reaps) == 0
    assert 10 < seconds_left(first, attempt) <= 30


def test_an_attempt_past_its_deadline_is_ended_although_it_sends_heartbeats(one: Bench) -> None:
    attempt = claimed(one, "busy")
    let_deadline_pass(one, attempt)
    with listening_worker(one, "busy"):
        assert one.heartbeat(attempt).status_code == 200
        assert one.reap() == 1
    assert attempt_record(one, attempt)["cause"] == "hard_timeout"
    assert one.heartbeat(attempt).status_code == 409


def test_the_hard_timeout_is_the_timeout_of_the_job(one: Bench) -> None:
    row = one.row(claimed(one, "w", "timeout: 7m").task_id)
    assert row["deadline_at"] - row["started_at"] == timedelta(minutes=7)


def test_a_reaped_attempt_waits_for_its_retry_and_keeps_its_lease(one: Bench) -> None:
    attempt = claimed(one, "w")
    one.let_lease_expire(attempt)
    one.reap()
    row, record = one.row(attempt.task_id), attempt_record(one, attempt)
    wait = row["retry_at"] - record["ended_at"]
    assert timedelta(seconds=15) <= wait <= timedelta(seconds=45)
    assert str(row["lease_token"]) == attempt.claimed["lease_token"]
    assert row["finished_at"] is None


def test_the_last_attempt_fails_permanently(one: Bench) -> None:
    attempt = claimed(one, "w", "max_attempts: 1")
    one.let_lease_expire(attempt)
    one.reap()
    row = one.row(attempt.task_id)
    assert (row["status"], row["retry_at"]) == ("Failed", None)
    assert row["finished_at"] is not None


def test_a_silent_task_with_a_cancel_request_is_canceled(one: Bench) -> None:
    attempt = claimed(one, "w")
    one.cancel(attempt.task_id)
    one.let_lease_expire(attempt)
    one.reap()
    row = one.row(attempt.task_id)
    assert (row["status"], row["retry_at"]) == ("Canceled", None)
    assert attempt_record(one, attempt)["outcome"] == "Canceled"


def test_a_late_completion_of_a_canceled_attempt_is_accepted(one: Bench) -> None:
    attempt = claimed(one, "w")
    one.cancel(attempt.task_id)
    one.let_lease_expire(attempt)
    one.reap()
    assert one.complete(attempt, "Canceled").json()["task_status"] == "Canceled"


def test_the_reaper_does_not_change_tasks_with_a_live_lease(one: Bench) -> None:
    attempt = claimed(one, "w")
    before = one.row(attempt.task_id)
    assert one.reap() == 0
    assert one.row(attempt.task_id) == before


def test_a_reaped_task_frees_its_concurrency_slot_and_wakes_the_next_task(one: Bench) -> None:
    first, second = one.tasks(2, "scaling: {max_concurrency: 1}")
    attempt = one.claimed(first)
    assert one.claim(second).json()["reason"] == "NotReady"
    before = one.messages("ecs_python").count({"task_id": second})
    one.let_lease_expire(attempt)
    one.reap()
    one.live.drain()
    assert one.messages("ecs_python").count({"task_id": second}) == before + 1
    assert one.claim(second).json()["status"] == "Claimed"


def test_a_reaper_pass_is_bounded(one: Bench) -> None:
    attempts = [one.claimed(task_id) for task_id in one.tasks(8)]
    for attempt in attempts:
        one.let_lease_expire(attempt)
    small = replace(one.live.service.reaper, batch_size=3)
    assert [one.live.run(small.reap_once) for _ in range(4)] == [3, 3, 2, 0]


def test_reapers_of_two_replicas_end_each_attempt_once(replicas: list[Bench]) -> None:
    first, second = replicas
    attempts = [first.claimed(task_id) for task_id in first.tasks(60)]
    for attempt in attempts:
        first.let_lease_expire(attempt)
    lock = "LOCK TABLE task_attempts IN SHARE MODE"  # both reapers wait where they record the end
    counts = run_behind_lock(first.live.dsns.state, lock, [first.reap, second.reap])
    assert sum(counts) == 60
    for attempt in attempts:
        assert attempt_record(first, attempt)["outcome"] == "Failed"


def test_the_reaper_knows_when_the_next_lease_expires(one: Bench) -> None:
    attempt = claimed(one, "w", "heartbeat_timeout: 20s")
    due = one.live.run(one.live.service.reaper.next_due)
    assert timedelta(0) < due <= timedelta(seconds=20)
    one.complete(attempt)
