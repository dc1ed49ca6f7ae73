"""The wake-up sweeper: a lost wake-up heals itself, a doubled one changes nothing."""

from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from support import queue_tables
from support.dispatcher import Secrets, live
from support.lifecycle import Bench, at_once, bench
from support.postgres import Templates, copied


@pytest.fixture
def alone(templates: Templates, secrets: Secrets, tmp_path: Path) -> Generator[Bench]:
    """A database of its own: sweeping looks at every queue."""
    with (
        copied(templates) as dsns,
        live(secrets, dsns, tmp_path / "objects") as running,
        bench(running) as made,
    ):
        yield made


def lose_messages(bench: Bench) -> None:
    queue_tables.delete_all(bench.live.dsns.queue)


def wait_a_minute(bench: Bench) -> None:
    bench.rows("UPDATE tasks SET queued_at = queued_at - interval '1 minute'")


def sweep(bench: Bench) -> None:
    bench.live.run(bench.live.service.sweeper.sweep_once)
    bench.live.drain()


def woken(bench: Bench) -> Counter[str]:
    return Counter(message["task_id"] for message in bench.messages("ecs_python"))


def test_tasks_that_wait_beside_an_empty_queue_are_woken_again(alone: Bench) -> None:
    ids = alone.tasks(3)
    lose_messages(alone)
    wait_a_minute(alone)
    sweep(alone)
    assert woken(alone) == Counter(ids)


def test_a_queue_that_still_has_messages_is_left_alone(alone: Bench) -> None:
    ids = alone.tasks(3)
    wait_a_minute(alone)
    sweep(alone)
    assert woken(alone) == Counter(ids)


def test_a_fresh_task_is_given_time(alone: Bench) -> None:
    alone.tasks(2)
    lose_messages(alone)
    sweep(alone)
    assert woken(alone) == Counter()


def test_tasks_that_run_or_ended_are_not_woken(alone: Bench) -> None:
    running, ended, waiting = alone.tasks(3)
    alone.claimed(running)
    alone.complete(alone.claimed(ended))
    lose_messages(alone)
    wait_a_minute(alone)
    sweep(alone)
    assert woken(alone) == Counter([waiting])


def test_a_forgotten_inline_task_is_run(alone: Bench) -> None:
    dag = alone.dag()
    body = {"dag": dag.name, "job": "request", "start": 0, "end": 9}
    assert alone.user.post("/v1/triggers", json=body).status_code == 200
    alone.live.run(alone.live.service.publisher.publish_once)  # routes, and asks to run `split`
    alone.rows("DELETE FROM outbox")
    wait_a_minute(alone)
    sweep(alone)
    assert len(alone.waiting(dag, "work")) == 1


def test_sweepers_of_two_replicas_double_wake_ups_at_most_and_no_task_runs_twice(
    replicas: list[Bench],
) -> None:
    first, second = replicas
    ids = first.tasks(5)
    lose_messages(first)
    wait_a_minute(first)
    at_once([lambda b=b: b.live.run(b.live.service.sweeper.sweep_once) for b in (first, second)])
    first.live.drain()
    assert all(1 <= woken(first)[task_id] <= 2 for task_id in ids)
    answers = [first.claim(m["task_id"]).json() for m in first.messages("ecs_python")]
    won = Counter(a["task"]["task_id"] for a in answers if a["status"] == "Claimed")
    assert set(won.values()) <= {1}
    assert set(ids) <= set(won)
