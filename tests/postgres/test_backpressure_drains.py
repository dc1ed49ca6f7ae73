"""Under backpressure, running loops and workers still drain every queue."""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.dags.pressure import Graph, graph
from support.lifecycle.lifecycle import Attempt, Bench, bench
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied
from trace_etl.queues.pgqueue import PgQueue

DRAIN_TIMEOUT = 120.0


@pytest.fixture(scope="module")
def busy(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Bench]:
    """A Dispatcher whose loops run, with a short delay for bulk tasks."""
    objects = tmp_path_factory.mktemp("objects")
    quick = {"pressure_bulk_delay": timedelta(seconds=0.1)}
    with (
        copied(templates) as dsns,
        live(secrets, dsns, objects, loops=True, **quick) as running,
        bench(running) as made,
    ):
        yield made


@contextmanager
def workers(bench: Bench, count: int, *, publishes: bool = False) -> Generator[None]:
    """Workers that claim only the tasks named in queue messages."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=run_worker, args=(bench, n, stop, publishes)) for n in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)


def run_worker(bench: Bench, number: int, stop: threading.Event, publishes: bool) -> None:
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
                    published = [bench.write_output(attempt)] if publishes else []
                    events = [attempt.event()]
                    bench.complete(attempt, datasets_published=published, events=events, http=http)
    consumer.close()


def is_drained(bench: Bench, graphs: list[Graph]) -> bool:
    names = [g.name for g in graphs]
    busy = """
        SELECT 1 FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
         WHERE g.name = ANY(%s) AND t.status IN ('Queued', 'Running')
         UNION ALL SELECT 1 FROM deferred_events
         UNION ALL SELECT 1 FROM outbox UNION ALL SELECT 1 FROM trips UNION ALL SELECT 1 FROM pauses
    """
    return not bench.rows(busy, names)


def count_completed(g: Graph) -> dict[str, int]:
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
def test_a_load_drains_completely_under_any_queue_limits(
    busy: Bench, options: list[tuple[str, str]], loads: list[int]
) -> None:
    jobs = dict(zip(("top", "left", "right", "end"), options, strict=False))
    inputs = {"top": "split", "left": "top", "right": "top", "end": "left right"}
    g = graph(busy, {job: f"{inputs[job]}; {'; '.join(jobs[job])}" for job in jobs})
    other = graph(busy, {"far": f"@{g.name}_end; {'; '.join(options[4])}"})
    total = sum(loads)
    with workers(busy, 2):
        for n, load in enumerate(loads):
            g.trigger(load, first=sum(loads[:n]))
        until = time.monotonic() + DRAIN_TIMEOUT
        while not is_drained(busy, [g, other]):
            assert time.monotonic() < until, (
                count_completed(g),
                g.paused(),
                count_completed(other),
            )
            busy.user.get("/v1/pressure").raise_for_status()
    assert count_completed(g) == {
        "request": len(loads),
        "split": len(loads),
        "top": total,
        "left": total,
        "right": total,
        "end": 2 * total,  # one task for each input that advanced
    }
    assert count_completed(other)["far"] == total


def test_a_backfill_completes_while_other_tasks_run(busy: Bench) -> None:
    g = graph(busy, {"work": "split; max_queue_depth: 4", "end": "work; max_queue_depth: 2"})
    body = {"dag": g.name, "job": "work", "start": 0, "end": 199}
    with workers(busy, 2, publishes=True):
        made = busy.user.post("/v1/backfills", json=body).json()
        g.trigger(5, first=15)  # this range overlaps the backfill and runs only once
        until = time.monotonic() + DRAIN_TIMEOUT
        while not is_drained(busy, [g]) or backfill_state(busy, made) == "running":
            assert time.monotonic() < until, (
                count_completed(g),
                g.paused(),
                backfill_state(busy, made),
            )
    assert backfill_state(busy, made) == "complete"
    assert count_completed(g) == {"request": 1, "split": 1, "work": 20, "end": 20}


def backfill_state(busy: Bench, made: dict[str, str]) -> str:
    return busy.user.get(f"/v1/backfills/{made['backfill_id']}").json()["state"]
