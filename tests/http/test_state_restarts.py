"""Postgres state restarts under a running Dispatcher: calls continue, nothing is duplicated."""

from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import psycopg

from support.data.buffered import Producer, batch_target
from support.lifecycle.lifecycle import Attempt, Bench, run_concurrently
from support.services.postgres import until_blocked


def end_every_session(bench: Bench) -> int:
    """End every session, like a restart of Postgres does."""
    query = """
        SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid()
    """
    with psycopg.connect(bench.live.dsns.state, autocommit=True) as conn:
        return conn.execute(query).fetchall()[0][0]


def resting_after_a_claim(bench: Bench) -> int:
    """Count the open sessions whose last statement was a claim."""
    query = """
        SELECT pid FROM pg_stat_activity
         WHERE datname = current_database() AND state = 'idle'
           AND starts_with(ltrim(query, E'\n'), 'UPDATE tasks t')
    """
    return len(bench.rows(query))


def fill_the_pools(bench: Bench, ids: list[str]) -> list[Attempt]:
    """Open several connections: each claim finds the connections of earlier claims blocked by a lock."""
    with (
        psycopg.connect(bench.live.dsns.state) as holder,
        ThreadPoolExecutor(len(ids)) as pool,
        ExitStack() as stack,
    ):
        holder.execute("SELECT FROM tasks WHERE task_id = ANY(%s::uuid[]) FOR UPDATE", (ids,))
        calls: list[Future[httpx.Response]] = []
        for n, task_id in enumerate(ids, 1):
            http = stack.enter_context(bench.live.internal())
            calls.append(pool.submit(bench.claim, task_id, http=http))
            until_blocked(bench.live.dsns.state, n)
        holder.rollback()
        return [Attempt(call.result().json()) for call in calls]


def test_every_call_is_answered_after_all_sessions_ended(alone: Bench) -> None:
    producer = Producer(alone, "buffered_rows")
    producer.deploy("one")
    publisher = producer.attempt("one")
    dag = alone.dag()
    ids = alone.tasks(6, dag=dag)
    attempts = fill_the_pools(alone, ids[:4])
    assert resting_after_a_claim(alone) >= 4
    first, second, *rest = attempts
    for call in (
        lambda: alone.claim(ids[4]),
        lambda: alone.heartbeat(first),
        lambda: alone.events(first, first.event()),
        lambda: alone.publish(publisher, **batch_target(publisher)),
        lambda: alone.fetch(ids[5]),
        lambda: alone.complete(first, datasets_published=[alone.write_output(first)]),
        lambda: alone.complete(second),
        lambda: alone.user.get("/v1/tasks"),
    ):
        assert end_every_session(alone) > 0
        reply = call()
        assert reply.status_code == 200, reply.text
    statuses = Counter(r["status"] for r in alone.rows("SELECT status FROM tasks"))
    assert statuses["Running"] == len(rest) + 2
    assert len(alone.rows("SELECT 1 FROM events WHERE producer_task_id = %s", first.task_id)) == 1


def test_ending_sessions_during_calls_neither_loses_nor_duplicates_work(alone: Bench) -> None:
    ids = alone.tasks(60)

    def claim_and_complete(task_id: str) -> tuple[int, int]:
        claimed = alone.claim(task_id)
        if claimed.status_code != 200 or claimed.json()["status"] != "Claimed":
            return claimed.status_code, 0
        attempt = Attempt(claimed.json())
        return 200, alone.complete(attempt, events=[attempt.event()]).status_code

    def disturb() -> tuple[int, int]:
        for _ in range(5):
            end_every_session(alone)
        return 0, 0

    calls = [lambda t=t: claim_and_complete(t) for t in ids]
    answers = run_concurrently([*calls, disturb])[:-1]
    assert {status for pair in answers for status in pair} <= {0, 200, 503}
    for task_id, (claimed, completed) in zip(ids, answers, strict=True):
        row = alone.row(task_id)
        events = alone.rows("SELECT 1 FROM events WHERE producer_task_id = %s", task_id)
        if completed == 200:
            assert (row["status"], len(events)) == ("Completed", 1)
        elif claimed == 200:
            assert row["status"] in ("Running", "Completed")
            assert len(events) == (row["status"] == "Completed")


def test_the_loops_continue_after_all_sessions_ended(alone: Bench) -> None:
    dag = alone.dag()
    attempt = alone.attempt(dag=dag)
    alone.let_lease_expire(attempt)
    end_every_session(alone)
    for _ in range(20):  # a pass may fail; the loop logs the error and retries
        try:
            if alone.reap():
                break
        except psycopg.OperationalError:
            continue
    assert alone.status(attempt.task_id) == "Failed"
