"""The wake-up sweeper sends lost wake-ups again, and a duplicate wake-up changes nothing."""

from collections import Counter

from support import queue_tables
from support.lifecycle.lifecycle import Bench, run_concurrently


def lose_messages(bench: Bench) -> None:
    queue_tables.delete_all(bench.live.dsns.queue)


def age_queued_tasks(bench: Bench) -> None:
    bench.rows("UPDATE tasks SET queued_at = queued_at - interval '1 minute'")


def sweep(bench: Bench) -> None:
    bench.live.run(bench.live.service.sweeper.sweep_once)
    bench.live.drain()


def woken(bench: Bench) -> Counter[str]:
    return Counter(message["task_id"] for message in bench.messages("ecs_python"))


def test_queued_tasks_without_messages_are_woken_again(alone: Bench) -> None:
    ids = alone.tasks(3)
    lose_messages(alone)
    age_queued_tasks(alone)
    sweep(alone)
    assert woken(alone) == Counter(ids)


def test_a_queue_that_still_has_messages_gets_no_new_wake_ups(alone: Bench) -> None:
    ids = alone.tasks(3)
    age_queued_tasks(alone)
    sweep(alone)
    assert woken(alone) == Counter(ids)


def test_a_recently_queued_task_is_not_woken_again(alone: Bench) -> None:
    alone.tasks(2)
    lose_messages(alone)
    sweep(alone)
    assert woken(alone) == Counter()


def test_running_and_ended_tasks_are_not_woken(alone: Bench) -> None:
    running, ended, waiting = alone.tasks(3)
    alone.claimed(running)
    alone.complete(alone.claimed(ended))
    lose_messages(alone)
    age_queued_tasks(alone)
    sweep(alone)
    assert woken(alone) == Counter([waiting])


def test_an_inline_task_without_an_outbox_row_is_run(alone: Bench) -> None:
    dag = alone.dag()
    body = {"dag": dag.name, "job": "request", "start": 0, "end": 9}
    assert alone.user.post("/v1/triggers", json=body).status_code == 200
    alone.live.run(
        alone.live.service.publisher.publish_once
    )  # routes and requests a run of `split`
    alone.rows("DELETE FROM outbox")
    age_queued_tasks(alone)
    sweep(alone)
    assert len(alone.waiting(dag, "work")) == 1


def test_two_sweepers_send_at_most_two_wake_ups_and_no_task_runs_twice(
    replicas: list[Bench],
) -> None:
    first, second = replicas
    ids = first.tasks(5)
    lose_messages(first)
    age_queued_tasks(first)
    run_concurrently(
        [lambda b=b: b.live.run(b.live.service.sweeper.sweep_once) for b in (first, second)]
    )
    first.live.drain()
    assert all(1 <= woken(first)[task_id] <= 2 for task_id in ids)
    answers = [first.claim(m["task_id"]).json() for m in first.messages("ecs_python")]
    won = Counter(a["task"]["task_id"] for a in answers if a["status"] == "Claimed")
    assert set(won.values()) <= {1}
    assert set(ids) <= set(won)
