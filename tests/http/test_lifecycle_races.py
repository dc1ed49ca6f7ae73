"""Races between many threads with their own connections, started together by a barrier."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg

from support.data.buffered import Producer, batch_target
from support.lifecycle.lifecycle import Attempt, Bench, run_concurrently
from support.services.postgres import until_blocked

CALLERS = 32


def run_callers(
    benches: list[Bench],
    size: int,
    call: Callable[[int, Bench, httpx.Client], Any],
    *,
    over: list[str] | None = None,
) -> list[Any]:
    """Run `size` concurrent callers, each with its own connection, spread over the replicas.

    The tasks in `over` are locked until several sessions wait for them; then all continue together.
    """
    with ExitStack() as stack:
        calls: list[Callable[[], Any]] = []
        if over:
            conn = stack.enter_context(psycopg.connect(benches[0].live.dsns.state))
            conn.execute("SELECT 1 FROM tasks WHERE task_id = ANY(%s::uuid[]) FOR UPDATE", (over,))
        for n in range(size):
            chosen = benches[n % len(benches)]
            http = stack.enter_context(chosen.live.internal())
            assert http.get("/healthz").status_code == 200  # connect before the barrier
            calls.append(lambda n=n, chosen=chosen, http=http: call(n, chosen, http))
        if over:
            return run_concurrently([*calls, lambda: release_when_blocked(conn)])[:-1]
        return run_concurrently(calls)


def release_when_blocked(conn: psycopg.Connection) -> None:
    """Commit once two other sessions wait for a lock."""
    until_blocked(conn.info.dsn, 2)
    conn.commit()


def statuses(replies: list[httpx.Response]) -> Counter[int]:
    return Counter(reply.status_code for reply in replies)


# --- claims -----------------------------------------------------------------------------------


def test_claims_are_not_blocked_by_claims_that_wait_for_a_lock(replicas: list[Bench]) -> None:
    replica = replicas[0]
    *locked, free = replica.tasks(4)
    with ExitStack() as stack:
        holder = stack.enter_context(psycopg.connect(replica.live.dsns.state))
        holder.execute("SELECT FROM tasks WHERE task_id = ANY(%s::uuid[]) FOR UPDATE", (locked,))
        pool = stack.enter_context(ThreadPoolExecutor(len(locked)))
        run_behind_lock = []
        for n, task_id in enumerate(locked, 1):  # one batch each
            http = stack.enter_context(replica.live.internal())
            run_behind_lock.append(pool.submit(replica.claim, task_id, http=http))
            until_blocked(replica.live.dsns.state, n)
        assert replica.claim(free).json()["status"] == "Claimed"
        assert not any(call.done() for call in run_behind_lock)
        holder.rollback()
        assert [call.result().json()["status"] for call in run_behind_lock] == ["Claimed"] * 3


def test_of_many_concurrent_claims_exactly_one_wins(replicas: list[Bench]) -> None:
    for task_id in replicas[0].tasks(5):
        replies = run_callers(
            replicas,
            CALLERS,
            lambda n, b, http, t=task_id: b.claim(t, f"w{n}", http=http),
            over=[task_id],
        )
        answers = [reply.json() for reply in replies]
        claimed = [a for a in answers if a["status"] == "Claimed"]
        assert len(claimed) == 1
        lost = [a for a in answers if a["status"] != "Claimed"]
        assert lost == [{"status": "NotClaimed", "reason": "AlreadyRunning"}] * (CALLERS - 1)
        row = replicas[0].row(task_id)
        assert str(row["lease_token"]) == claimed[0]["lease_token"]
        assert row["worker_id"] == f"w{answers.index(claimed[0])}"


def test_claims_of_many_tasks_in_any_order_do_not_block_each_other(replicas: list[Bench]) -> None:
    ids = replicas[0].tasks(40)

    def claim_all(n: int, b: Bench, http: httpx.Client) -> list[dict]:
        order = ids if n % 2 else list(reversed(ids))
        return [b.claim(t, f"w{n}", http=http).json() for t in order]

    answers = [a for each in run_callers(replicas, 8, claim_all) for a in each]
    claims_by_task = Counter(a["task"]["task_id"] for a in answers if a["status"] == "Claimed")
    assert claims_by_task == Counter(ids)


def test_concurrent_claim_many_calls_share_the_tasks(replicas: list[Bench]) -> None:
    ids = replicas[0].tasks(50, "runtime: ecs_platform")

    def claim_some(n: int, b: Bench, http: httpx.Client) -> list[dict]:
        body = {"runtime": "ecs_platform", "worker_id": f"w{n}", "max_tasks": 7}
        path = "/internal/task-claim-many"
        return http.post(path, json=body, headers=b.worker_headers).json()["claimed"]

    def claim_one(n: int, b: Bench, http: httpx.Client) -> list[dict]:
        answer = b.claim(ids[n], f"w{n}", http=http).json()
        return [answer] if answer["status"] == "Claimed" else []

    claims = run_callers(
        replicas, 16, lambda *caller: claim_one(*caller) if caller[0] % 2 else claim_some(*caller)
    )
    taken = Counter(a["task"]["task_id"] for claimed in claims for a in claimed)
    assert set(taken.values()) == {1}
    assert all(len(claimed) <= 7 for claimed in claims)
    running = replicas[0].rows(
        "SELECT task_id FROM tasks WHERE status = 'Running' AND task_id = ANY(%s::uuid[])", ids
    )
    assert {str(r["task_id"]) for r in running} == set(taken)


def test_a_capped_job_never_exceeds_its_cap(replicas: list[Bench]) -> None:
    ids = replicas[0].tasks(CALLERS, "scaling: {max_concurrency: 3}")
    replies = run_callers(
        replicas, CALLERS, lambda n, b, http: b.claim(ids[n], f"w{n}", http=http), over=ids
    )
    answers = [reply.json() for reply in replies]
    assert Counter(a["status"] for a in answers) == {"Claimed": 3, "NotClaimed": CALLERS - 3}
    assert {a["reason"] for a in answers if a["status"] == "NotClaimed"} == {"NotReady"}


def test_a_capped_job_never_exceeds_its_cap_while_tasks_end(replicas: list[Bench]) -> None:
    ids = replicas[0].tasks(24, "scaling: {max_concurrency: 2}")
    job = replicas[0].row(ids[0])["job_id"]
    count = "SELECT count(*) AS n FROM tasks WHERE job_id = %s AND status = 'Running'"
    running_counts: list[int] = []

    def work(n: int, b: Bench, http: httpx.Client) -> int:
        completed = 0
        while any(r["status"] == "Queued" for r in b.rows(of_job, job)):
            for task_id in ids[n::2] + ids[1 - n :: 2]:
                reply = b.claim(task_id, f"w{n}", http=http).json()
                running_counts.append(b.rows(count, job)[0]["n"])
                if reply["status"] == "Claimed":
                    completed += b.complete(Attempt(reply), http=http).status_code == 200
        return completed

    of_job = "SELECT status FROM tasks WHERE job_id = %s"
    assert sum(run_callers(replicas, 2, lambda n, b, http: work(n % 2, b, http))) == 24
    assert max(running_counts) <= 2


def test_a_concurrent_claim_and_cancellation_are_serialised(replicas: list[Bench]) -> None:
    outcomes: Counter[str] = Counter()
    for task_id in replicas[0].tasks(12):

        def act(n: int, b: Bench, http: httpx.Client, task_id: str = task_id) -> dict:
            if n:
                return b.claim(task_id, http=http).json()
            return b.cancel(task_id).json()

        canceled, claimed = run_callers(replicas, 2, act, over=[task_id])
        row = replicas[0].row(task_id)
        outcomes[claimed["status"]] += 1
        if claimed["status"] == "Claimed":
            assert canceled["status"] == row["status"] == "Running"
            assert row["cancel_requested"]
        else:
            assert claimed["reason"] == "Canceled"
            assert canceled["status"] == row["status"] == "Canceled"
            assert row["lease_token"] is None
    assert sum(outcomes.values()) == 12


# --- completions ------------------------------------------------------------------------------


def test_concurrent_identical_completions_take_effect_once(replicas: list[Bench]) -> None:
    attempt = replicas[0].attempt()
    body = {"events": [attempt.event()], "datasets_published": [replicas[0].write_output(attempt)]}
    replies = run_callers(
        replicas,
        16,
        lambda n, b, http: b.complete(attempt, http=http, **body),
        over=[attempt.task_id],
    )
    assert statuses(replies) == {200: 16}
    first = replicas[0]
    for table, column in (("events", "producer_task_id"), ("partitions", "task_id")):
        assert len(first.rows(f"SELECT 1 FROM {table} WHERE {column} = %s", attempt.task_id)) == 1
    assert len(first.rows("SELECT 1 FROM task_attempts WHERE task_id = %s", attempt.task_id)) == 1


def test_of_different_concurrent_completions_one_wins_and_the_others_conflict(
    replicas: list[Bench],
) -> None:
    for attempt in [replicas[0].claimed(t) for t in replicas[0].tasks(4)]:
        replies = run_callers(
            replicas,
            16,
            lambda n, b, http, a=attempt: b.complete(
                a, "Failed" if n % 2 else "Completed", http=http, error_message=f"error of {n}"
            ),
            over=[attempt.task_id],
        )
        assert statuses(replies) == {200: 1, 409: 15}
        codes = {r.json()["code"] for r in replies if r.status_code == 409}
        assert codes == {"completion_mismatch"}
        (winner,) = [n for n, r in enumerate(replies) if r.status_code == 200]
        assert replicas[0].row(attempt.task_id)["error_message"] == f"error of {winner}"


def test_a_concurrent_stale_completion_does_not_affect_the_current_one(
    replicas: list[Bench],
) -> None:
    for _ in range(3):
        old = replicas[0].attempt()
        replicas[0].complete(old, "Failed")
        new = replicas[0].next_attempt(old)
        replies = run_callers(
            replicas[:1],  # one replica: the calls share its group commits
            16,
            lambda n, b, http, old=old, new=new: b.complete(new if n % 4 == 3 else old, http=http),
        )
        stale = [r for n, r in enumerate(replies) if n % 4 != 3]
        current = [r for n, r in enumerate(replies) if n % 4 == 3]
        assert statuses(current) == {200: 4}
        assert {(r.status_code, r.json().get("reason")) for r in stale} == {(409, "stale_attempt")}
        assert replicas[0].row(new.task_id)["attempt"] == 2


def test_a_concurrent_completion_and_reap_are_serialised(replicas: list[Bench]) -> None:
    first, second = replicas
    for attempt in [first.claimed(t) for t in first.tasks(8)]:
        first.let_lease_expire(attempt)

        def act(n: int, b: Bench, http: httpx.Client, attempt: Attempt = attempt) -> Any:
            return b.complete(attempt, http=http) if n == 0 else b.reap()

        reply, *_ = run_callers([first, second], 3, act)
        assert reply.status_code == 200
        row = first.row(attempt.task_id)
        assert (row["status"], row["retry_at"], row["cause"]) == ("Completed", None, None)
        (ended,) = first.rows("SELECT * FROM task_attempts WHERE task_id = %s", attempt.task_id)
        assert ended["outcome"] == "Completed"


def test_a_concurrent_late_completion_and_retry_are_serialised(replicas: list[Bench]) -> None:
    first, second = replicas
    for task_id in first.tasks(8):
        attempt = first.claimed(task_id)
        first.let_lease_expire(attempt)
        first.reap()
        first.let_retry_fall_due(task_id)

        def act(n: int, b: Bench, http: httpx.Client, attempt: Attempt = attempt) -> Any:
            if n == 0:
                return b.complete(attempt, http=http, events=[attempt.event()])
            return b.start_retries()

        reply, *started = run_callers([first, second], 3, act)
        row = first.row(task_id)
        events = first.rows("SELECT 1 FROM events WHERE producer_task_id = %s", task_id)
        if reply.status_code == 200:
            assert (row["status"], row["attempt"], len(events)) == ("Completed", 1, 1)
            assert sum(started) == 0
        else:
            assert reply.json()["reason"] == "stale_attempt"
            assert (row["status"], row["attempt"], len(events)) == ("Queued", 2, 0)
            assert sum(started) == 1


def test_a_concurrent_heartbeat_and_reap_are_serialised(replicas: list[Bench]) -> None:
    first, second = replicas
    for attempt in [first.claimed(t) for t in first.tasks(8)]:
        first.let_lease_expire(attempt)

        def act(n: int, b: Bench, http: httpx.Client, attempt: Attempt = attempt) -> Any:
            return b.heartbeat(attempt, http=http) if n == 0 else b.reap()

        reply, reaped = run_callers([first, second], 2, act)
        row = first.row(attempt.task_id)
        if reply.status_code == 200:
            assert (row["status"], reaped) == ("Running", 0)
        else:
            assert reply.json()["reason"] == "not_running"
            assert (row["status"], reaped) == ("Failed", 1)


# --- events and buffers -----------------------------------------------------------------------


def test_concurrent_identical_events_are_recorded_once(replicas: list[Bench]) -> None:
    attempt = replicas[0].attempt()
    replies = run_callers(
        replicas,
        16,
        lambda n, b, http: b.events(attempt, attempt.event(), http=http),
        over=[attempt.task_id],
    )
    assert statuses(replies) == {200: 16}
    assert sum(r.json()["accepted"] for r in replies) == 1
    events = "SELECT event_id FROM events WHERE producer_task_id = %s"
    (event,) = replicas[0].rows(events, attempt.task_id)
    query = "SELECT 1 FROM outbox WHERE subject = %s"
    assert len(replicas[0].rows(query, event["event_id"])) == 1


def test_concurrent_identical_batches_are_published_once(replicas: list[Bench]) -> None:
    for n in range(4):
        producer = Producer(replicas[0], f"alerts_{n}_{uuid4().hex[:12]}")
        producer.deploy("one")
        attempt = producer.attempt("one")
        body = batch_target(attempt)
        replies = run_callers(
            replicas,
            16,
            lambda n, b, http, a=attempt, x=body: b.publish(a, http=http, **x),
            over=[attempt.task_id],
        )
        assert statuses(replies) == {200: 16}, [r.text for r in replies]
        assert len({r.json()["publish_id"] for r in replies}) == 1
        query = "SELECT publish_id FROM buffer_publishes WHERE task_id = %s"
        (record,) = replicas[0].rows(query, attempt.task_id)
        query = "SELECT 1 FROM outbox WHERE subject = %s"
        assert len(replicas[0].rows(query, record["publish_id"])) == 1


# --- deploys, triggers and loops --------------------------------------------------------------


def test_concurrent_identical_triggers_record_one_event(replicas: list[Bench]) -> None:
    dag = replicas[0].dag()
    body = {"dag": dag.name, "job": "request", "start": 0, "end": 99}
    users = [b.user for b in replicas]
    replies = run_concurrently(
        [lambda n=n: users[n % 2].post("/v1/triggers", json=body) for n in range(12)]
    )
    assert statuses(replies) == {200: 12}
    assert Counter(r.json()["created"] for r in replies) == {True: 1, False: 11}
    assert len({r.json()["event_id"] for r in replies}) == 1


def test_publishers_of_two_replicas_process_every_outbox_row_once(
    replicas: list[Bench], tmp_path: Path
) -> None:
    first, second = replicas
    dag = first.dag()
    body = {"dag": dag.name, "job": "request", "start": 0, "end": 1999}
    assert first.user.post("/v1/triggers", json=body).status_code == 200
    run_concurrently([first.live.drain, second.live.drain])
    first.live.drain()
    waiting = first.waiting(dag, "work")
    assert len(waiting) == 200
    wake_ups = Counter(m["task_id"] for m in first.messages("ecs_python"))
    assert {wake_ups[task_id] for task_id in waiting} == {1}
