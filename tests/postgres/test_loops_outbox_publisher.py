"""The outbox publisher delivers at least once, backs off, and finally marks a row as failed."""

from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from support import queue_tables
from support.lifecycle.lifecycle import Bench, bench, run_concurrently
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied
from trace_etl.dispatcher.loops.outbox_publisher import OutboxPublisher
from trace_etl.lite.processes.ports import free_port
from trace_etl.state.db.pool import transaction
from trace_etl.state.routing import events, outbox


@pytest.fixture
def cut_off(templates: Templates, secrets: Secrets, tmp_path: Path) -> Generator[Bench]:
    """A Dispatcher whose queue does not answer."""
    with copied(templates) as dsns:
        nowhere = make_conninfo(dsns.queue, port=free_port())
        timeout = timedelta(seconds=0.2)
        with (
            live(
                secrets, dsns, tmp_path / "objects", queue_dsn=nowhere, queue_timeout=timeout
            ) as running,
            bench(running) as made,
        ):
            yield made


def break_queue(bench: Bench) -> None:
    queue_tables.disable(bench.live.dsns.queue)


def restore_queue(bench: Bench) -> None:
    queue_tables.enable(bench.live.dsns.queue)


def trigger(bench: Bench, blocks: int) -> None:
    dag = bench.dag()
    body = {"dag": dag.name, "job": "request", "start": 0, "end": blocks - 1}
    assert bench.user.post("/v1/triggers", json=body).status_code == 200


def publish(bench: Bench) -> int:
    return bench.live.run(bench.live.service.publisher.publish_once)


def rows(bench: Bench) -> list[dict]:
    wait = "extract(epoch FROM next_try_at - now())::float AS wait"
    return bench.rows(f"SELECT *, {wait} FROM outbox ORDER BY outbox_id")


def make_due(bench: Bench) -> None:
    bench.rows("UPDATE outbox SET next_try_at = now() WHERE failed_at IS NULL")


def test_an_undeliverable_row_is_retried_with_backoff_and_then_fails_permanently(
    alone: Bench,
) -> None:
    trigger(alone, 10)
    break_queue(alone)
    alone.live.drain()
    waits = []
    for tries in range(1, 21):
        (row,) = rows(alone)
        assert (row["kind"], row["tries"]) == ("wake_up", tries)
        assert "messages" in row["last_error"]
        waits.append(row["wait"])
        assert (row["failed_at"] is not None) == (tries == 20)
        make_due(alone)
        publish(alone)
    assert [round(wait) for wait in waits[:10]] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    (row,) = rows(alone)
    assert row["tries"] == 20  # no further tries


def test_permanently_failed_rows_are_listed_and_can_be_replayed(alone: Bench) -> None:
    trigger(alone, 30)
    break_queue(alone)
    alone.live.drain()
    alone.rows("UPDATE outbox SET tries = 19, next_try_at = now()")
    publish(alone)
    failed = alone.user.get("/v1/outbox", params={"failed": True}).json()["items"]
    assert [item["tries"] for item in failed] == [20] * 3
    assert all(item["failed_at"] and item["last_error"] for item in failed)
    assert alone.user.get("/v1/outbox", params={"failed": False}).json()["items"] == []
    assert len(alone.user.get("/v1/outbox").json()["items"]) == 3
    assert len(alone.user.get("/v1/outbox", params={"limit": 2}).json()["items"]) == 2
    restore_queue(alone)
    assert publish(alone) == 0
    assert alone.user.post("/v1/outbox/replay").json() == {"replayed": 3}
    alone.live.drain()
    assert len(alone.messages("ecs_python")) == 3
    assert rows(alone) == []
    assert alone.user.post("/v1/outbox/replay").json() == {"replayed": 0}


def test_one_undeliverable_row_does_not_delay_the_others(alone: Bench) -> None:
    trigger(alone, 50)
    bad = "INSERT INTO outbox (kind, target, subject) VALUES ('wake_up', 'No Queue!', %s)"
    alone.rows(bad, "00000000-0000-0000-0000-000000000007")
    alone.live.drain()
    assert len(alone.messages("ecs_python")) == 5
    (row,) = rows(alone)
    assert (row["target"], row["tries"]) == ("No Queue!", 1)
    assert row["last_error"]


def test_an_unreachable_queue_delays_its_rows_together_and_no_others(
    cut_off: Bench,
) -> None:
    trigger(cut_off, 1000)
    for _ in range(3):  # route the trigger, run the split, route its events
        publish(cut_off)
    cut_off.live.drain()  # 100 wake-ups for an unreachable queue: one timeout, not a hundred
    delayed = rows(cut_off)
    assert Counter((r["kind"], r["tries"]) for r in delayed) == {("wake_up", 1): 100}
    assert all("queue does not answer" in r["last_error"] for r in delayed)
    # The first delay is one second. On a slow machine it would pass during the next trigger.
    cut_off.rows("UPDATE outbox SET next_try_at = next_try_at + interval '1 hour'")
    trigger(cut_off, 10)
    assert publish(cut_off) == 1
    assert "route_event" not in {r["kind"] for r in rows(cut_off)}


def test_the_reaper_and_task_queries_work_while_the_queue_is_unreachable(
    cut_off: Bench,
) -> None:
    dag = cut_off.dag()
    first, second = cut_off.tasks(2, dag=dag)
    attempt = cut_off.claimed(first)
    cut_off.let_lease_expire(attempt)
    assert cut_off.reap() == 1
    assert cut_off.row(first)["cause"] == "lease_expired"
    reply = cut_off.user.get(f"/v1/tasks/{second}")
    assert reply.status_code == 200
    assert reply.json()["reason"].endswith("the queue does not answer, so no worker can be woken")


def test_the_rows_of_a_crashed_publisher_are_delivered_by_the_next_one(alone: Bench) -> None:
    trigger(alone, 10)
    lease = replace(alone.live.service.publisher, hold=timedelta(seconds=30))
    alone.live.run(lambda: lease_rows(lease))
    assert publish(alone) == 0  # the first publisher still holds the row
    alone.rows("UPDATE outbox SET next_try_at = now()")  # its hold has expired
    alone.live.drain()
    assert len(alone.messages("ecs_python")) == 1


async def lease_rows(publisher: OutboxPublisher) -> None:
    async with transaction(publisher.pool) as conn:
        assert await outbox.lease(conn, limit=10, hold=publisher.hold)


def test_a_publisher_that_crashes_after_routing_leaves_the_wake_ups_to_the_next_one(
    alone: Bench,
) -> None:
    trigger(alone, 30)
    publish(alone)  # routes the trigger
    publish(alone)  # runs the split, which emits three events
    alone.live.run(lambda: route_without_wake_ups(alone.live.service.publisher))
    assert [(row["kind"], row["tries"]) for row in rows(alone)] == [("wake_up", 1)] * 3
    assert publish(alone) == 0  # the first publisher still holds the rows
    make_due(alone)  # its hold has expired
    assert publish(alone) == 3
    assert len(alone.messages("ecs_python")) == 3
    assert rows(alone) == []


async def route_without_wake_ups(publisher: OutboxPublisher) -> None:
    """Do what a publisher has done between routing events and sending wake-ups."""
    async with publisher.pool.connection() as conn:
        leased = await outbox.lease(conn, limit=10, hold=publisher.hold)
        ids = [intent.outbox_id for intent in leased]
        subjects = [intent.subject for intent in leased]
        made = await events.route(conn, subjects, performed=ids, hold=publisher.hold)
    assert len(made.wake_ups) == len(leased) == 3


def test_a_paused_inline_job_runs_after_it_resumes(alone: Bench) -> None:
    trigger(alone, 10)
    publish(alone)  # routes the trigger; the split has not run yet
    pause = "UPDATE jobs SET paused_at = %s, paused_by = %s WHERE name = 'split'"
    alone.rows(pause, "2026-01-01", "user:x")
    alone.live.drain()
    assert alone.rows("SELECT status FROM tasks WHERE runtime = 'dispatcher' AND status = 'Queued'")
    alone.rows(pause, None, None)
    alone.rows("UPDATE tasks SET queued_at = now() - interval '1 minute'")
    alone.live.run(alone.live.service.sweeper.sweep_once)
    alone.live.drain()
    assert len(alone.messages("ecs_python")) == 1


def test_publishers_of_two_replicas_share_the_rows(replicas: list[Bench]) -> None:
    first, second = replicas
    trigger(first, 3000)
    assert [publish(first), publish(first)] == [1, 1]  # the trigger's event, and its split
    small = [replace(b.live.service.publisher, batch_size=20) for b in replicas]

    def drain(n: int) -> int:
        total = 0
        while done := replicas[n].live.run(small[n].publish_once):
            total += done
        return total

    counts = run_concurrently([lambda: drain(0), lambda: drain(1)])
    assert (
        sum(counts) + drain(0) == 300
    )  # one row per event: it is routed and its wake-up is sent, together
    assert min(counts) > 0
    woken = Counter(m["task_id"] for m in first.messages("ecs_python"))
    assert set(woken.values()) == {1}
    assert rows(second) == []
