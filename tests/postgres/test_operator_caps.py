"""An operator cap holds across all its jobs and replicas, and a freed slot wakes a waiting task."""

import asyncio
from collections.abc import Generator
from contextlib import ExitStack
from uuid import UUID, uuid4

import pytest

from support.dags.pressure import Graph, graph
from support.lifecycle.lifecycle import Bench, bench, run_concurrently
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied
from support.waiting import eventually
from trace_etl.state.db.connection import Connection
from trace_etl.state.tasks import capped_claims
from trace_etl.state.tasks.claims import ClaimRequest


@pytest.fixture(scope="module")
def capped(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[list[Bench]]:
    """Two Dispatchers that allow three concurrent attempts of `sql`."""
    objects = tmp_path_factory.mktemp("objects")
    with ExitStack() as stack:
        dsns = stack.enter_context(copied(templates))
        caps = {"operator_caps": {"sql": 3}}
        running = [stack.enter_context(live(secrets, dsns, objects, **caps)) for _ in range(2)]
        yield [stack.enter_context(bench(one)) for one in running]


@pytest.fixture
def one(capped: list[Bench]) -> Bench:
    capped[0].rows(
        "TRUNCATE tasks, task_attempts, attempt_logs, chain_heads, events, outbox, deferred_events"
    )
    return capped[0]


def queue_two_jobs(one: Bench) -> tuple[Graph, list[str]]:
    g = graph(one, {"a": "split", "b": "split"})
    g.feed(4)
    return g, g.queued("a") + g.queued("b")


def test_concurrent_claims_do_not_exceed_the_operator_cap(one: Bench, capped: list[Bench]) -> None:
    _, tasks = queue_two_jobs(one)
    calls = [lambda t=t, b=capped[n % 2]: b.claim(t).json() for n, t in enumerate(tasks)]
    answers = run_concurrently(calls)
    won = [a for a in answers if a["status"] == "Claimed"]
    assert len(won) == 3
    assert {a["reason"] for a in answers if a not in won} == {"NotReady"}
    waiting = next(t for t in tasks if one.status(t) == "Queued")
    reason = one.user.get(f"/v1/tasks/{waiting}").json()["reason"]
    assert reason.endswith(": the operator's cap of 3 over all jobs is reached")
    (load,) = [
        o for o in one.user.get("/v1/pressure").json()["operators"] if o["operator"] == "sql"
    ]
    assert (load["running"], load["queued"], load["cap"]) == (3, 5, 3)


def test_a_completion_wakes_a_task_of_any_job_of_the_operator(one: Bench) -> None:
    g, _ = queue_two_jobs(one)
    running = [one.claimed(task) for task in g.queued("a")[:3]]
    assert one.claim(g.queued("b")[0]).json()["reason"] == "NotReady"
    before = len(one.messages("ecs_python"))
    one.complete(running[0])
    one.live.drain()
    (woken,) = one.messages("ecs_python")[before:]
    one.claimed(woken["task_id"])
    assert one.claim(g.queued("b")[0]).json()["reason"] == "NotReady"


def test_a_claim_by_runtime_takes_as_many_tasks_as_the_cap_allows(one: Bench) -> None:
    queue_two_jobs(one)
    for expected in (3, 0):
        assert len(one.claim_many("ecs_python", 10)) == expected


_OTHER = """
name: other
jobs:
  - {name: request, activation: source, source: {kind: manual}, outputs: [ranges]}
  - name: work
    operator: range_splitter
    runtime: ecs_python
    inputs: [{from: {job: request}}]
    outputs: [done]
    scaling: {max_concurrency: 1}
"""


def queue_other_job(one: Bench) -> None:
    """Queue the youngest task: its job has a cap, but its operator has none."""
    assert one.user.post("/v1/dags", json={"text": _OTHER}).status_code == 200
    body = {"dag": "other", "job": "request", "start": 0, "end": 9}
    assert one.user.post("/v1/triggers", json=body).status_code == 200
    one.live.drain()


def test_a_claim_by_runtime_skips_an_operator_at_its_cap(one: Bench) -> None:
    _, tasks = queue_two_jobs(one)
    for task in tasks[:3]:
        one.claimed(task)
    queue_other_job(one)
    (won,) = one.claim_many("ecs_python", 2)
    assert won["task"]["job"] == {"dag_name": "other", "name": "work"}


@pytest.mark.parametrize("older", ["a", "b"])
def test_the_last_slot_goes_to_the_oldest_task_and_other_operators_are_still_claimed(
    one: Bench, older: str
) -> None:
    g, tasks = queue_two_jobs(one)
    first = g.queued(older)
    age = "UPDATE tasks SET queued_at = queued_at - interval '1 hour' WHERE task_id = %s"
    for task in first:
        one.rows(age, task)
    for task in [t for t in tasks if t not in first][:2]:
        one.claimed(task)
    queue_other_job(one)
    mine, other = one.claim_many("ecs_python", 2)
    assert mine["task"]["task_id"] in first
    assert other["task"]["job"] == {"dag_name": "other", "name": "work"}


async def test_a_cap_counts_tasks_that_were_queued_without_one(one: Bench) -> None:
    """A redeploy gives a job a cap while tasks without a cap are still queued."""
    g = graph(one, {"a": "split"})
    g.feed(3)
    old, *new = g.queued("a")
    one.rows("UPDATE tasks SET queued_at = queued_at - interval '1 hour' WHERE task_id = %s", old)
    one.rows("UPDATE tasks SET max_concurrency = 1 WHERE task_id = ANY(%s::uuid[])", new)
    requests = [ClaimRequest(UUID(task_id), "w", uuid4()) for task_id in (old, *new)]
    async with (
        await Connection.connect(one.live.dsns.state, autocommit=True) as conn,
        conn.transaction(),
    ):
        won = await capped_claims.claim_capped(conn, requests)
    assert [str(task.task_id) for task in won.values()] == [old]


async def test_a_task_started_while_a_claim_waited_is_not_counted_twice(one: Bench) -> None:
    g, _ = queue_two_jobs(one)
    one.claimed(g.queued("a")[0])  # takes one of three slots
    first, second = UUID(g.queued("a")[0]), UUID(g.queued("b")[0])
    mine = [ClaimRequest(first, "mine", uuid4())]
    theirs = [ClaimRequest(task_id, "theirs", uuid4()) for task_id in (first, second)]
    dsn = one.live.dsns.state
    async with (
        await Connection.connect(dsn, autocommit=True) as here,
        await Connection.connect(dsn, autocommit=True) as there,
    ):

        async def claim_there() -> list[UUID]:
            async with there.transaction():
                won = await capped_claims.claim_capped(there, theirs)
            return [task.task_id for task in won.values()]

        async with here.transaction():
            assert await capped_claims.claim_capped(here, mine)
            waiting = asyncio.create_task(claim_there())
            query = "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted"
            backend = there.info.backend_pid
            await asyncio.to_thread(eventually, lambda: one.rows(query, backend), "the claim waits")
        assert await waiting == [second]  # the third slot


def test_concurrent_claims_by_runtime_fill_every_cap_and_exceed_none(
    one: Bench, capped: list[Bench]
) -> None:
    caps = {"a": 1, "b": 1, "c": 3}  # the operator's cap of three applies to all of them
    g = graph(one, {n: f"split; scaling: {{max_concurrency: {cap}}}" for n, cap in caps.items()})
    g.feed(4)
    run_concurrently([lambda b=capped[n % 2]: b.claim_many("ecs_python", 5) for n in range(8)])
    while one.claim_many("ecs_python", 5):  # callers that lost a race left free slots
        pass
    rows = one.rows("SELECT name FROM tasks JOIN jobs USING (job_id) WHERE status = 'Running'")
    running = {n: [row["name"] for row in rows].count(n) for n in caps}
    assert sum(running.values()) == 3
    assert all(running[n] <= cap for n, cap in caps.items())


def test_the_cap_of_a_job_applies_within_the_cap_of_its_operator(one: Bench) -> None:
    g = graph(one, {"a": "split; scaling: {max_concurrency: 1}", "b": "split"})
    g.feed(3)
    first = one.claimed(g.queued("a")[0])
    assert one.claim(g.queued("a")[0]).json()["reason"] == "NotReady"
    rest = [one.claimed(task) for task in g.queued("b")[:2]]
    assert one.claim(g.queued("b")[0]).json()["reason"] == "NotReady"
    for attempt in rest:
        one.complete(attempt)
    before = len(one.messages("ecs_python"))
    one.live.drain()
    woken = {m["task_id"] for m in one.messages("ecs_python")[before:]}
    assert woken == set(g.queued("b"))  # job `a` is at its own cap
    one.complete(first)


def test_a_dispatcher_without_caps_claims_every_task(
    capped: list[Bench], one: Bench, secrets: Secrets
) -> None:
    g, tasks = queue_two_jobs(one)
    with live(secrets, one.live.dsns, one.live.objects) as plain, bench(plain) as free:
        assert all(free.claim(task).json()["status"] == "Claimed" for task in tasks)
    caps = {"operator_caps": {"sql": 3}}
    with live(secrets, one.live.dsns, one.live.objects, **caps):
        later = graph(one, {"c": "split"})
        later.feed(1)
        assert one.claim(later.queued("c")[0]).json()["reason"] == "NotReady"
    assert g.queued("a") == []
