"""Backpressure on real queues: which jobs pause, which events are deferred, and how they resume."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from support import queue_tables
from support.dags.pressure import balance, graph
from support.lifecycle.lifecycle import Bench, run_concurrently


@pytest.fixture
def alone(own_bench: Bench) -> Bench:
    """The same database without the rows of the previous test."""
    own_bench.rows(
        "TRUNCATE tasks, task_attempts, attempt_logs, chain_heads, events, outbox, trips, pauses, deferred_events"
    )
    own_bench.rows(
        "UPDATE jobs SET active = false, paused_at = NULL, paused_by = NULL,"
        " bulk_paused_at = NULL, bulk_paused_by = NULL"
    )
    forget_messages(own_bench)
    return own_bench


def test_a_queue_at_its_limit_pauses_upstream_bulk_then_all_tasks_and_resumes_later(
    alone: Bench,
) -> None:
    g = graph(alone, {"work": "split; max_queue_depth: 4", "after": "work"})
    g.feed(3)
    balance(alone)
    assert g.paused() == {}
    g.feed(2, first=3)
    balance(alone)
    assert g.paused() == {"request": "bulk", "split": "bulk"}
    balance(alone)
    assert g.paused() == {"request": "bulk", "split": "bulk"}
    balance(alone, escalate_after=0)
    assert g.paused() == {"request": "normal", "split": "normal"}
    g.finish_queued("work", 2)
    balance(alone, escalate_after=0)
    assert g.paused() == {
        "request": "normal",
        "split": "normal",
    }  # 3 queued is above half the limit
    g.finish_queued("work", 1)
    balance(alone)
    assert g.paused() == {"request": "bulk", "split": "bulk"}
    balance(alone)
    assert g.paused() == {}
    assert alone.rows("SELECT 1 FROM trips") == []


def test_a_pause_records_the_job_that_caused_it_and_the_reason(alone: Bench) -> None:
    g = graph(alone, {"work": "split; max_queue_depth: 2"})
    g.feed(2)
    balance(alone)
    balance(alone, escalate_after=0)
    (row,) = alone.rows(
        "SELECT p.by_name, p.tier, p.reason, j.paused_by, j.paused_at = p.since AS same"
        "  FROM pauses p JOIN jobs j USING (job_id) WHERE j.name = 'split'"
    )
    assert row == {
        "by_name": f"backpressure of {g.name}.work",
        "tier": "normal",
        "reason": "queue depth 2, limit 2",
        "paused_by": f"backpressure of {g.name}.work (queue depth 2, limit 2)",
        "same": True,
    }


def test_a_trigger_of_a_paused_source_is_deferred_until_it_resumes(alone: Bench) -> None:
    g = graph(alone, {"work": "split; max_queue_depth: 2"})
    g.feed(2)
    balance(alone, escalate_after=0)
    balance(alone, escalate_after=0)
    deferred = g.trigger(3, first=2)
    assert deferred["created"]
    assert deferred["deferred_by"].startswith(f"backpressure of {g.name}.work (")
    alone.live.drain()
    assert len(g.queued("work")) == 2
    assert alone.rows("SELECT 1 FROM outbox") == []  # no outbox row is retried in a loop
    assert alone.rows("SELECT count(*) AS n FROM deferred_events") == [{"n": 1}]
    g.finish_queued("work", 2)
    balance(alone)
    balance(alone)
    alone.live.drain()
    assert len(g.queued("work")) == 3
    assert alone.rows("SELECT 1 FROM deferred_events") == []


def test_a_paused_consumer_gets_its_events_when_it_resumes_and_others_immediately(
    alone: Bench,
) -> None:
    limits = "max_queue_depth: 2"
    g = graph(alone, {"work": "split", "mid": "work", "last": f"mid; {limits}", "side": "work"})
    g.feed(4)
    g.finish_queued("work", 2)
    alone.live.drain()
    g.finish_queued("mid", 2)
    alone.live.drain()
    balance(alone, escalate_after=0)
    balance(alone, escalate_after=0)
    assert g.paused() == dict.fromkeys(["request", "split", "work", "mid"], "normal")
    # Tasks of a paused job cannot be claimed; after the pause their events reach `side` and `mid`.
    running = [alone.row(task)["status"] for task in g.queued("work")]
    assert running == ["Queued", "Queued"]
    assert {alone.claim(task).json()["reason"] for task in g.queued("work")} == {"NotReady"}
    g.finish_queued("last", 2)
    for _ in range(2):
        balance(alone)
    alone.live.drain()
    g.finish_queued("work", 2)
    alone.live.drain()
    assert len(g.queued("side")) == 4
    assert len(g.queued("mid")) == 2


def test_an_attempt_that_runs_while_its_job_is_paused_may_finish(alone: Bench) -> None:
    g = graph(alone, {"work": "split", "last": "work; max_queue_depth: 1"})
    g.feed(3)
    running = alone.claimed(g.queued("work")[0])
    g.finish_queued("work", 1)
    alone.live.drain()
    balance(alone, escalate_after=0)
    balance(alone, escalate_after=0)
    assert g.paused()["work"] == "normal"
    assert alone.heartbeat(running).status_code == 200
    g.finish(running)
    alone.live.drain()
    assert len(g.queued("last")) == 2  # the tripped job itself is never paused


def test_a_bulk_pause_holds_bulk_tasks_and_lets_normal_tasks_run(alone: Bench) -> None:
    g = graph(alone, {"work": "split", "last": "work; max_queue_depth: 1"})
    g.feed(2)
    g.make_bulk("work")
    held = g.queued("work")
    g.feed(2, first=2)
    free = [task for task in g.queued("work") if task not in held]
    g.finish(alone.claimed(free[0]))
    alone.live.drain()
    balance(alone)
    assert g.paused()["work"] == "bulk"
    assert alone.claim(held[0]).json()["reason"] == "NotReady"
    alone.claimed(free[1])
    assert [c["task"]["job"]["name"] for c in alone.claim_many("ecs_python", 10)] == ["last"]


def test_resuming_wakes_the_tasks_that_could_not_be_claimed(alone: Bench) -> None:
    g = graph(alone, {"work": "split", "last": "work; max_queue_depth: 1"})
    g.feed(3)
    g.finish_queued("work", 1)
    alone.live.drain()
    balance(alone, escalate_after=0)
    balance(alone, escalate_after=0)
    alone.rows("UPDATE tasks SET queued_at = queued_at - interval '1 hour'")
    forget_messages(alone)
    alone.live.run(alone.live.service.sweeper.sweep_once)
    alone.live.drain()
    waiting = set(g.queued("work"))
    assert not waiting & set(woken(alone))  # no wake-up for a paused job
    g.finish_queued("last", 1)
    balance(alone)
    balance(alone)
    alone.live.drain()
    assert set(woken(alone)) >= waiting


def test_a_resume_larger_than_one_batch_continues_in_steps(alone: Bench) -> None:
    g = graph(alone, {"work": "split", "last": "work; max_queue_depth: 1"})
    g.feed(8)
    g.finish_queued("work", 1)
    alone.live.drain()
    balance(alone, escalate_after=0)
    balance(alone, escalate_after=0)
    forget_messages(alone)
    for n in range(5):
        g.trigger(1, first=8 + n)
    g.finish_queued("last", 1)
    balance(alone)
    balance(alone)
    small = replace(alone.live.service.publisher, batch_size=2)
    while alone.live.run(small.publish_once):
        pass
    assert len(g.queued("work")) == 12
    assert set(woken(alone)) == set(g.queued("work"))


def test_an_event_deferred_during_a_resume_is_still_routed(alone: Bench) -> None:
    g = graph(alone, {"work": "split"})
    g.trigger(2)
    alone.rows(
        "INSERT INTO deferred_events (event_id, job_id, bulk)"
        " SELECT event_id, job_id, false FROM events, jobs WHERE name = 'split' AND active"
    )
    alone.rows("DELETE FROM outbox")
    balance(alone)
    alone.live.drain()
    assert len(g.queued("work")) == 2


def test_a_queue_age_limit_pauses_upstream_until_the_old_tasks_are_done(alone: Bench) -> None:
    g = graph(alone, {"work": "split; max_queue_age: 60s"})
    g.feed(2)
    balance(alone)
    assert g.paused() == {}
    alone.rows("UPDATE tasks SET queued_at = now() - interval '61 s' WHERE status = 'Queued'")
    balance(alone)
    assert g.paused() == {"request": "bulk", "split": "bulk"}
    assert alone.rows("SELECT reason, threshold FROM trips") == [{"reason": "age", "threshold": 60}]
    g.finish_queued("work", 2)
    balance(alone)
    assert g.paused() == {}


def test_every_job_upstream_of_a_diamond_is_paused_once_and_resumes(alone: Bench) -> None:
    g = graph(
        alone,
        {"top": "split", "left": "top", "right": "top", "end": "left right; max_queue_depth: 3"},
    )
    g.feed(2)
    for job in ("top", "left", "right"):
        g.finish_queued(job, 2)
        alone.live.drain()
    assert len(g.queued("end")) == 4
    balance(alone, escalate_after=0)
    balance(alone, escalate_after=0)
    upstream = ["request", "split", "top", "left", "right"]
    assert g.paused() == dict.fromkeys(upstream, "normal")
    g.finish_queued("end", 4)
    balance(alone)
    balance(alone)
    assert g.paused() == {}


def test_a_cycle_across_dags_does_not_pause_itself(alone: Bench) -> None:
    first = graph(alone, {"a": "split; max_queue_depth: 1"}, name="one")
    second = graph(alone, {"b": "@one_a; max_queue_depth: 1"}, name="two")
    # Deploy refuses a cycle that it detects; backpressure must also survive an undetected one.
    alone.rows(
        "INSERT INTO job_inputs (revision_id, input_index, name, dataset_uuid)"
        " SELECT j.revision_id, 9, 'back', p.dataset_uuid"
        "   FROM publications p, jobs j JOIN dags g USING (dag_id)"
        "  WHERE p.name = 'two_b' AND g.name = 'one' AND j.name = 'a'"
    )
    first.feed(2)
    first.finish_queued("a", 1)
    alone.live.drain()
    assert (len(first.queued("a")), len(second.queued("b"))) == (1, 1)
    balance(alone, escalate_after=0)
    balance(alone, escalate_after=0)
    assert first.paused() == {"request": "normal", "split": "normal"}
    assert second.paused() == {}
    assert alone.rows("SELECT count(*) AS n FROM trips") == [{"n": 2}]
    alone.claimed(first.queued("a")[0])
    alone.claimed(second.queued("b")[0])
    for _ in range(2):
        balance(alone)
    assert first.paused() == {}


def test_a_deploy_that_removes_the_limit_ends_the_pauses(alone: Bench) -> None:
    g = graph(alone, {"work": "split; max_queue_depth: 1"})
    g.feed(2)
    balance(alone, escalate_after=0)
    balance(alone, escalate_after=0)
    assert g.paused() == {"request": "normal", "split": "normal"}
    graph(alone, {"work": "split"}, name=g.name)
    balance(alone)
    balance(alone)
    assert g.paused() == {}
    assert alone.rows("SELECT 1 FROM jobs WHERE paused_at IS NOT NULL") == []


def test_without_limits_the_backpressure_loop_sleeps_and_writes_nothing(alone: Bench) -> None:
    g = graph(alone, {"work": "split"})
    g.feed(50)
    loop = alone.live.service.backpressure
    before = alone.dump()
    assert alone.live.run(loop.balance_once) == 0
    assert alone.live.run(loop.next_due) is None
    assert alone.dump() == before
    limited = graph(alone, {"work": "split; max_queue_depth: 1"})
    assert alone.live.run(loop.next_due).total_seconds() == 1
    limited.feed(1)
    balance(alone)
    assert alone.live.run(loop.next_due).total_seconds() < 1


def test_the_reconciler_does_not_undo_a_pause(alone: Bench) -> None:
    g = graph(alone, {"work": "split", "after": "work"})
    g.feed(2)
    g.make_bulk("work")
    held = {"dag": g.name, "reason": "test"}
    alone.user.post("/v1/pauses", json={**held, "job": "request"}).raise_for_status()
    alone.user.post("/v1/pauses", json={**held, "job": "after", "tier": "bulk"}).raise_for_status()
    g.trigger(1, first=2)
    for task_id in g.queued("work"):
        attempt = alone.claimed(task_id)
        published = [alone.write_output(attempt)]
        alone.complete(attempt, datasets_published=published, events=[attempt.event()])
    alone.live.drain()
    reconciler = replace(alone.live.service.reconciler, grace=timedelta(0))
    for _ in range(3):
        alone.live.run(reconciler.reconcile_once)
        alone.live.drain()
    assert (g.queued("work"), g.queued("after")) == ([], [])
    alone.user.post("/v1/pauses/resume", json={"dag": g.name}).raise_for_status()
    alone.live.drain()
    assert len(g.queued("work")) == 1
    assert [alone.row(task)["bulk"] for task in g.queued("after")] == [True, True]


def test_the_backpressure_loops_of_two_replicas_agree(replicas: list[Bench]) -> None:
    first, second = replicas
    g = graph(first, {"work": "split; max_queue_depth: 2"})
    g.feed(3)
    for _ in range(3):
        run_concurrently([lambda b=b: balance(b, escalate_after=0) for b in (first, second)])
    assert g.paused() == {"request": "normal", "split": "normal"}
    g.finish_queued("work", 3)
    for _ in range(3):
        run_concurrently([lambda b=b: balance(b, escalate_after=0) for b in (first, second)])
    assert g.paused() == {}
    released = first.rows(
        "SELECT j.name, count(*) AS n FROM outbox o JOIN jobs j ON j.job_id = o.subject"
        " JOIN dags g USING (dag_id) WHERE o.kind = 'release' AND g.name = %s GROUP BY j.name",
        g.name,
    )
    assert {row["name"]: row["n"] for row in released} == {
        "request": 2,
        "split": 2,
    }  # once per tier


def test_pausing_and_resuming_during_routing_loses_no_event(replicas: list[Bench]) -> None:
    first, second = replicas
    g = graph(first, {"work": "split", "after": "work"})
    for n in range(30):
        g.trigger(1, first=n)

    def publish(bench: Bench) -> None:
        small = replace(bench.live.service.publisher, batch_size=3)
        while bench.live.run(small.publish_once):
            pass

    def pause_and_resume(job: str) -> None:
        body = {"dag": g.name, "job": job}
        for _ in range(8):
            for path in ("/v1/pauses", "/v1/pauses/resume"):
                first.user.post(path, json=body).raise_for_status()

    pausing = [lambda job=job: pause_and_resume(job) for job in ("request", "split", "work")]
    run_concurrently([lambda: publish(first), lambda: publish(second), *pausing])
    publish(first)
    balance(first)
    publish(second)
    assert len(g.queued("work")) == 30
    assert set(g.queued("work")) <= set(woken(first))
    assert first.rows("SELECT 1 FROM deferred_events") == []


def forget_messages(bench: Bench) -> None:
    queue_tables.delete_all(bench.live.dsns.queue)


def woken(bench: Bench) -> Counter[str]:
    return Counter(message["task_id"] for message in bench.messages("ecs_python"))
