"""Real loops, real queues, workers that are only woken: under pressure everything still drains."""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.dispatcher import Secrets, live
from support.lifecycle import Attempt, Bench, bench
from support.postgres import Templates, copied
from support.pressure import Graph, graph
from trace_etl.queues.pgqueue import PgQueue

PATIENCE = 60.0


@pytest.fixture(scope="module")
def busy(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Bench]:
    """A Dispatcher whose loops run, impatiently."""
    objects = tmp_path_factory.mktemp("objects")
    quick = {"pressure_bulk_delay": timedelta(seconds=0.1)}
    with (
        copied(templates) as dsns,
        live(secrets, dsns, objects, loops=True, **quick) as running,
        bench(running) as made,
    ):
        yield made


@contextmanager
def working(bench: Bench, count: int) -> Generator[None]:
    """Workers that do nothing but what messages tell them to."""
    stop = threading.Event()
    threads = [threading.Thread(target=_work, args=(bench, n, stop)) for n in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


def _work(bench: Bench, number: int, stop: threading.Event) -> None:
    consumer = PgQueue(bench.live.dsns.queue).consumer(["ecs_python"], f"w{number}")
    with bench.live.internal() as http:
        while not stop.is_set():
            for message in consumer.receive(
                limit=1, visibility=timedelta(seconds=30), wait=timedelta(seconds=5), stop=stop
            ):
                answer = bench.claim(message.body["task_id"], f"w{number}", http).json()
                consumer.delete(message)
                if answer["status"] == "Claimed":
                    attempt = Attempt(answer)
                    bench.complete(attempt, events=[attempt.event()], http=http)
    consumer.close()


def drained(bench: Bench, graphs: list[Graph]) -> bool:
    names = [g.name for g in graphs]
    busy = """
        SELECT 1 FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
         WHERE g.name = ANY(%s) AND t.status IN ('Queued', 'Running')
         UNION ALL SELECT 1 FROM deferred_events
         UNION ALL SELECT 1 FROM outbox UNION ALL SELECT 1 FROM trips UNION ALL SELECT 1 FROM pauses
    """
    return not bench.rows(busy, names)


def completed(g: Graph) -> dict[str, int]:
    query = """
        SELECT j.name, count(t.task_id) AS n
          FROM jobs j JOIN dags g USING (dag_id)
          LEFT JOIN tasks t ON t.job_id = j.job_id AND t.status = 'Completed'
         WHERE g.name = %s GROUP BY j.name
    """
    return {row["name"]: row["n"] for row in g.bench.rows(query, g.name)}


limits = st.sampled_from(["", "max_queue_depth: 1", "max_queue_depth: 3", "max_queue_age: 1s"])
kinds = st.sampled_from(["", "priority: bulk"])


@settings(
    max_examples=3,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    st.lists(st.tuples(limits, kinds), min_size=5, max_size=5),
    st.lists(st.integers(1, 6), min_size=2, max_size=4),
)
def test_whatever_the_limits_all_of_a_load_gets_through(
    busy: Bench, options: list[tuple[str, str]], loads: list[int]
) -> None:
    jobs = dict(zip(("top", "left", "right", "end"), options, strict=False))
    inputs = {"top": "split", "left": "top", "right": "top", "end": "left right"}
    g = graph(busy, {job: f"{inputs[job]}; {'; '.join(jobs[job])}" for job in jobs})
    other = graph(busy, {"far": f"@{g.name}_end; {'; '.join(options[4])}"})
    total = sum(loads)
    with working(busy, 2):
        for n, load in enumerate(loads):
            g.trigger(load, first=sum(loads[:n]))
        until = time.monotonic() + PATIENCE
        while not drained(busy, [g, other]):
            assert time.monotonic() < until, (completed(g), g.paused(), completed(other))
            busy.user.get("/v1/pressure").raise_for_status()
    assert completed(g) == {
        "request": len(loads),
        "split": len(loads),
        "top": total,
        "left": total,
        "right": total,
        "end": 2 * total,  # a task for each input that moved
    }
    assert completed(other)["far"] == total


def test_a_backfill_runs_to_its_end_by_itself_beside_other_work(busy: Bench) -> None:
    g = graph(busy, {"work": "split; max_queue_depth: 4", "end": "work; max_queue_depth: 2"})
    body = {"dag": g.name, "job": "work", "start": 0, "end": 199}
    with working(busy, 2):
        made = busy.user.post("/v1/backfills", json=body).json()
        g.trigger(5, first=15)  # asked for twice, done once
        until = time.monotonic() + PATIENCE
        while not drained(busy, [g]) or _state(busy, made) == "running":
            assert time.monotonic() < until, (completed(g), g.paused(), _state(busy, made))
    assert _state(busy, made) == "complete"
    assert completed(g) == {"request": 1, "split": 1, "work": 20, "end": 20}


def _state(busy: Bench, made: dict[str, str]) -> str:
    return busy.user.get(f"/v1/backfills/{made['backfill_id']}").json()["state"]
