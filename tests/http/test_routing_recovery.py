"""Routing: lost, duplicated and reordered events end in the same state; ranges are routed once."""

from collections.abc import Generator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.lifecycle.lifecycle import Attempt, Bench, bench, run_concurrently
from support.services.dispatcher import Live, Secrets, live
from support.services.postgres import Templates, copied
from trace_etl.state.db.connection import Connection
from trace_etl.state.routing import events


@pytest.fixture(scope="module")
def benches(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[list[Bench]]:
    """Two replicas whose reconcilers have no grace period."""
    objects = tmp_path_factory.mktemp("objects")
    now = timedelta(0)
    with (
        copied(templates) as dsns,
        live(secrets, dsns, objects, reconcile_grace=now) as first_live,
        live(secrets, dsns, objects, reconcile_grace=now) as two,
        bench(first_live) as first,
        bench(two) as second,
    ):
        yield [first, second]


@pytest.fixture
def bench_a(benches: list[Bench]) -> Bench:
    return benches[0]


def reconcile(live: Live) -> None:
    while live.run(live.service.reconciler.reconcile_once):
        pass


def lose_outbox(bench_a: Bench, *kinds: str) -> int:
    return len(bench_a.rows("DELETE FROM outbox WHERE kind = ANY(%s) RETURNING 1", list(kinds)))


def made(bench_a: Bench, dag: str) -> list[tuple[str, str, int]]:
    """Return every task, without the values that vary between runs."""
    rows = bench_a.rows(
        """
        SELECT j.name, coalesce(t.partition_key, t.cursor_value::text) AS scope, count(*) AS n
          FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
         WHERE g.name = %s GROUP BY 1, 2 ORDER BY 1, 2
        """,
        dag,
    )
    return [(row["name"], row["scope"], row["n"]) for row in rows]


def publish(bench_a: Bench, attempt: Attempt, *, event: bool = True) -> None:
    """Publish the attempt's output. With `event=False`, its event is lost."""
    published = bench_a.write_output(attempt)
    assert bench_a.complete(attempt, datasets_published=[published]).status_code == 200
    if not event:
        lost = "DELETE FROM events WHERE producer_task_id = %s RETURNING event_id"
        for row in bench_a.rows(lost, attempt.task_id):
            bench_a.rows("DELETE FROM outbox WHERE subject = %s", row["event_id"])


# --- events -----------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("trigger"), st.integers(0, 5)),
        st.tuples(st.just("work"), st.integers(0, 9)),
        st.tuples(st.just("quiet"), st.integers(0, 9)),
        st.tuples(st.just("lose"), st.sampled_from(["route_event", "wake_up"])),
        st.tuples(st.just("double"), st.integers(0, 9)),
        st.tuples(st.just("drain"), st.integers(0, 1)),
        st.tuples(st.just("reconcile"), st.integers(0, 1)),
    ),
    max_size=20,
)


@settings(max_examples=settings.default.max_examples // 4, suppress_health_check=list(HealthCheck))
@given(steps)
def test_any_order_and_any_loss_end_in_the_same_state(benches: list[Bench], story: list) -> None:
    bench_a = benches[0]
    dag = bench_a.dag()

    def trigger(cell: int) -> None:
        body = {"dag": dag.name, "job": "request", "start": cell * 10, "end": cell * 10 + 9}
        assert bench_a.user.post("/v1/triggers", json=body).status_code == 200

    def work(nth: int, *, event: bool = True) -> None:
        if waiting := bench_a.waiting(dag, "work"):
            publish(bench_a, bench_a.claimed(waiting[nth % len(waiting)]), event=event)

    def double(nth: int) -> None:
        known = bench_a.rows("SELECT event_id FROM events ORDER BY event_id")
        if known:
            chosen = known[nth % len(known)]["event_id"]
            bench_a.rows("INSERT INTO outbox (kind, subject) VALUES ('route_event', %s)", chosen)

    for what, n in [*story, *(("trigger", cell) for cell in range(6))]:
        if what == "trigger":
            trigger(n)
        elif what in ("work", "quiet"):
            work(n, event=what == "work")
        elif what == "lose":
            lose_outbox(bench_a, n)
        elif what == "double":
            double(n)
        elif what == "drain":
            benches[n].live.drain()
        else:
            reconcile(benches[n].live)
    for _ in range(3):
        reconcile(bench_a.live)
        bench_a.live.drain()
        while bench_a.waiting(dag, "work"):
            work(0)
    cells = [f"{n * 10}-{n * 10 + 9}" for n in range(6)]
    expected = {(job, cell, 1) for job in ("request", "split", "work", "after") for cell in cells}
    assert set(made(bench_a, dag.name)) == expected


def test_the_reconciler_routes_an_output_whose_event_was_lost(bench_a: Bench) -> None:
    attempt = bench_a.attempt(dag=(dag := bench_a.dag()))
    publish(bench_a, attempt, event=False)
    bench_a.live.drain()
    assert bench_a.waiting(dag, "after") == []
    reconcile(bench_a.live)
    assert len(bench_a.waiting(dag, "after")) == 1


def test_the_reconciler_creates_no_tasks_for_existing_outputs(bench_a: Bench) -> None:
    attempt = bench_a.attempt(dag=(dag := bench_a.dag()))
    publish(bench_a, attempt)
    bench_a.live.drain()
    (after,) = bench_a.waiting(dag, "after")
    publish(bench_a, bench_a.claimed(after))
    bench_a.rows("UPDATE tasks SET dedupe_key = 'other' WHERE task_id = %s", after)
    bench_a.rows("DELETE FROM reconciled_edges")
    reconcile(bench_a.live)
    assert bench_a.waiting(dag, "after") == []


def test_the_reconciler_leaves_recent_events_to_the_outbox(
    secrets: Secrets, bench_a: Bench
) -> None:
    attempt = bench_a.attempt(dag=(dag := bench_a.dag()))
    publish(bench_a, attempt)
    with live(secrets, bench_a.live.dsns, bench_a.live.objects) as with_grace:
        reconcile(with_grace)
    assert bench_a.waiting(dag, "after") == []


def test_the_reconciler_skips_a_paused_consumer_until_it_resumes(bench_a: Bench) -> None:
    attempt = bench_a.attempt(dag=(dag := bench_a.dag()))
    publish(bench_a, attempt, event=False)
    body = {"dag": dag.name, "job": "after"}
    assert bench_a.user.post("/v1/pauses", json=body).status_code == 200
    reconcile(bench_a.live)
    assert bench_a.waiting(dag, "after") == []
    assert bench_a.user.post("/v1/pauses/resume", json=body).status_code == 200
    reconcile(bench_a.live)
    assert len(bench_a.waiting(dag, "after")) == 1


def test_concurrent_reconcilers_create_each_missing_task_once(benches: list[Bench]) -> None:
    bench_a = benches[0]
    dag = bench_a.dag()
    for task_id in bench_a.tasks(5, dag=dag):
        publish(bench_a, bench_a.claimed(task_id), event=False)
    run_concurrently([lambda s=s: reconcile(s.live) for s in benches for _ in range(3)])
    assert len(bench_a.waiting(dag, "after")) == 5


async def test_an_event_for_a_hundred_consumers_is_one_statement(bench_a: Bench) -> None:
    jobs = "\n".join(
        f"  - {{name: c{n}, operator: sql, inputs: [{{from: {{job: request}}}}],"
        f' outputs: [o{n}], config: {{sql: "SELECT {n}"}}}}'
        for n in range(100)
    )
    name = f"t_{uuid4().hex[:12]}"
    source = "  - {name: request, activation: source, source: {kind: manual}, outputs: [asked]}"
    text = f"name: {name}\njobs:\n{source}\n{jobs}\n"
    assert bench_a.user.post("/v1/dags", json={"text": text}).status_code == 200
    body = {"dag": name, "job": "request", "start": 0, "end": 9}
    event_id = UUID(bench_a.user.post("/v1/triggers", json=body).json()["event_id"])
    conn = await Connection.connect(bench_a.live.dsns.state, autocommit=True)
    async with conn:
        # Each statement is its own transaction here, so only a single statement is atomic.
        assert len((await events.route(conn, [event_id])).task_ids) == 100
        assert await events.route(conn, [event_id]) == events.RoutedEvents([], [])
    assert len(made(bench_a, name)) == 101


# --- cursors ----------------------------------------------------------------------------------

_CURSORS = """
name: {name}
jobs:
  - {{name: request, activation: source, source: {{kind: manual}}, outputs: [asked]}}
  - {{name: follow, operator: sql, inputs: [{{from: {{job: request}}}}], outputs: [head],
     config: {{sql: "SELECT 1"}}}}
  - name: read
    operator: sql
    inputs: [{{from: {{job: follow}}, where: {{kind: [a, b]}}}}]
    outputs: [rows]
    execution_strategy: PerUpdate
    config: {{sql: "SELECT 1"}}
  - {{name: ranges, operator: range_aggregator, inputs: [{{from: {{job: follow}}}}],
     outputs: [full], config: {{size: 10, start: 5}}}}
  - {{name: pack, operator: sql, inputs: [{{from: {{job: ranges}}}}], outputs: [packed],
     config: {{sql: "SELECT 1"}}}}
publish:
  - {{name: {name}_head, from: {{job: follow}}}}
  - {{name: {name}_full, from: {{job: ranges}}}}
"""


@pytest.fixture
def follower(bench_a: Bench) -> tuple[str, Attempt]:
    """Start an attempt that emits cursor events for a dataset."""
    name = f"t_{uuid4().hex[:12]}"
    assert (
        bench_a.user.post("/v1/dags", json={"text": _CURSORS.format(name=name)}).status_code == 200
    )
    body = {"dag": name, "job": "request", "start": 0, "end": 9}
    assert bench_a.user.post("/v1/triggers", json=body).status_code == 200
    bench_a.live.drain()
    return name, bench_a.claimed(queued(bench_a, name, "follow")[0])


def queued(bench_a: Bench, dag: str, job: str) -> list[str]:
    query = {"dag": dag, "job": job, "status": "Queued", "limit": 1000}
    items = bench_a.user.get("/v1/tasks", params=query).json()["items"]
    return [i["task_id"] for i in sorted(items, key=lambda i: i["cursor"] or 0)]


def scopes(bench_a: Bench, dag: str, job: str) -> list[str]:
    rows = bench_a.rows(
        """
        SELECT t.partition_key FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
         WHERE g.name = %s AND j.name = %s ORDER BY t.range_start
        """,
        dag,
        job,
    )
    return [row["partition_key"] for row in rows]


def move(bench_a: Bench, attempt: Attempt, *cursors: int) -> None:
    reply = bench_a.events(attempt, *(attempt.event(cursor=c) for c in cursors))
    assert reply.status_code == 200, reply.text
    bench_a.live.drain()


def test_a_cursor_advances_even_if_no_rows_matched(
    bench_a: Bench, follower: tuple[str, Attempt]
) -> None:
    name, attempt = follower
    move(bench_a, attempt, 100)
    first = bench_a.claimed(queued(bench_a, name, "read")[0])
    assert (first.scope["cursor"], first.scope["after"]) == (100, None)
    assert first.claimed["task"]["inputs"][0]["where"] == {"kind": ["a", "b"]}
    assert bench_a.complete(first).status_code == 200  # no rows, no output
    move(bench_a, attempt, 250)
    second = bench_a.claimed(queued(bench_a, name, "read")[0])
    assert (second.scope["cursor"], second.scope["after"]) == (250, 100)
    consumers = bench_a.user.get(f"/v1/datasets/{name}_head").json()["consumers"]
    assert {(c["job"], c["cursor"]) for c in consumers} == {("read", 100), ("ranges", 250)}


def test_a_cursor_never_decreases(bench_a: Bench, follower: tuple[str, Attempt]) -> None:
    name, attempt = follower
    move(bench_a, attempt, 10, 20)
    early, late = (bench_a.claimed(t) for t in queued(bench_a, name, "read"))
    assert bench_a.complete(late).status_code == 200
    assert bench_a.complete(early).status_code == 200
    move(bench_a, attempt, 30)
    assert bench_a.claimed(queued(bench_a, name, "read")[0]).scope["after"] == 20


def test_a_failed_read_does_not_advance_the_cursor(
    bench_a: Bench, follower: tuple[str, Attempt]
) -> None:
    name, attempt = follower
    move(bench_a, attempt, 10)
    read = bench_a.claimed(queued(bench_a, name, "read")[0])
    bench_a.complete(read, "Failed", error_message="x")
    assert bench_a.next_attempt(read).scope["after"] is None


def take_back(bench_a: Bench, attempt: Attempt, first: int, last: int, head: int) -> None:
    """Simulate a reorganisation that shortened the chain."""
    item = {"dataset_uuid": attempt.output["dataset_uuid"], "kind": "row_range"}
    body = {
        "events": [attempt.event(cursor=head)],
        "invalidations": [{**item, "start": first, "end": last}],
    }
    assert bench_a.call("/v1/task/events", attempt, **body).status_code == 200
    bench_a.live.drain()


def read_all(bench_a: Bench, name: str) -> list[tuple[int | None, int]]:
    """Run the queued tasks. Returns the range that each task read."""
    ranges: list[tuple[int | None, int]] = []
    for task_id in queued(bench_a, name, "read"):
        attempt = bench_a.claimed(task_id)
        ranges.append((attempt.scope["after"], attempt.scope["cursor"]))
        assert bench_a.complete(attempt).status_code == 200
    return ranges


def test_blocks_removed_by_a_reorganisation_are_read_again_when_they_return(
    bench_a: Bench, follower: tuple[str, Attempt]
) -> None:
    name, attempt = follower
    move(bench_a, attempt, 100, 105, 110)
    assert len(read_all(bench_a, name)) == 3
    take_back(bench_a, attempt, 104, 110, 104)
    assert read_all(bench_a, name) == [(103, 104)]
    move(bench_a, attempt, 105)
    assert read_all(bench_a, name) == [(104, 105)]
    move(bench_a, attempt, 105, 110)  # repeated: the second call changes nothing
    assert read_all(bench_a, name) == [(105, 110)]


def test_a_read_before_a_reorganisation_does_not_advance_the_cursor_past_it(
    bench_a: Bench, follower: tuple[str, Attempt]
) -> None:
    name, attempt = follower
    move(bench_a, attempt, 110)
    early = bench_a.claimed(queued(bench_a, name, "read")[0])
    take_back(bench_a, attempt, 104, 110, 104)
    assert bench_a.complete(early).status_code == 200
    assert (None, 104) in read_all(bench_a, name)
    move(bench_a, attempt, 108)
    assert read_all(bench_a, name)[-1] == (104, 108)


def publish_read(bench_a: Bench, attempt: Attempt) -> None:
    """Complete a read like the runner: one partition with all new rows up to the cursor."""
    after = attempt.scope["after"]
    first = 0 if after is None else after + 1
    item = bench_a.write_output(attempt) | {
        "range_start": first,
        "range_end": attempt.scope["cursor"],
    }
    reply = bench_a.complete(attempt, datasets_published=[item])
    assert reply.status_code == 200, reply.text


def test_a_read_never_starts_inside_a_committed_partition(
    bench_a: Bench, follower: tuple[str, Attempt]
) -> None:
    """A late cursor would move the consumer to the middle of a partition that must be rebuilt."""
    name, attempt = follower
    move(bench_a, attempt, 103)
    publish_read(bench_a, bench_a.claimed(queued(bench_a, name, "read")[0]))
    take_back(bench_a, attempt, 101, 103, 71)
    waiting = [bench_a.row(task_id) for task_id in queued(bench_a, name, "read")]
    (late,) = [row["task_id"] for row in waiting if row["cursor_value"] == 71]
    (again,) = [row["task_id"] for row in waiting if row["partition_key"] == "0-103"]
    publish_read(
        bench_a, bench_a.claimed(str(late))
    )  # a committed partition covers it: it is not committed
    move(bench_a, attempt, 105)
    (next_id,) = [t for t in queued(bench_a, name, "read") if t != str(again)]
    following = bench_a.claimed(next_id)
    assert (following.scope["after"], following.scope["cursor"]) == (-1, 105)
    publish_read(bench_a, following)
    answer = bench_a.claimed(str(again))
    reply = bench_a.complete(answer, datasets_published=[bench_a.write_output(answer)])
    assert reply.status_code == 200, reply.text
    query = "SELECT partition_key FROM partitions WHERE dataset_version = %s"
    assert bench_a.rows(query, answer.output["dataset_version"]) == [{"partition_key": "0-105"}]


# --- ranges -----------------------------------------------------------------------------------


def test_cursors_complete_aligned_ranges(bench_a: Bench, follower: tuple[str, Attempt]) -> None:
    name, attempt = follower
    move(bench_a, attempt, 18)
    assert (
        scopes(bench_a, name, "pack") == []
    )  # blocks before `start` never arrive: 0-9 stays incomplete
    move(bench_a, attempt, 19)
    assert scopes(bench_a, name, "pack") == ["10-19"]
    move(bench_a, attempt, 47)
    assert scopes(bench_a, name, "pack") == ["10-19", "20-29", "30-39"]


def test_an_invalid_range_invalidates_every_routed_range_it_overlaps(
    bench_a: Bench, follower: tuple[str, Attempt]
) -> None:
    name, attempt = follower
    move(bench_a, attempt, 39)
    for task_id in queued(bench_a, name, "pack"):
        publish(bench_a, bench_a.claimed(task_id))
    item = {"dataset_uuid": attempt.output["dataset_uuid"], "kind": "row_range"}
    rows = [{**item, "start": 17, "end": 23, "reason": "reorg"}]
    assert bench_a.call("/v1/task/events", attempt, invalidations=rows).status_code == 200
    bench_a.live.drain()
    bench_a.live.drain()
    again = [bench_a.claimed(t).claimed["task"] for t in queued(bench_a, name, "pack")]
    assert sorted(t["scope"]["partition_key"] for t in again) == ["10-19", "20-29"]
    assert {(t["invalidation"]["kind"], t["invalidation"]["reason"]) for t in again} == {
        ("partition", "reorg")
    }


_PIECES = """
name: {name}
jobs:
  - {{name: request, activation: source, source: {{kind: manual}}, outputs: [asked]}}
  - {{name: ranges, operator: range_aggregator, inputs: [{{from: {{job: request}}}}],
     outputs: [full], config: {{size: 20}}}}
  - {{name: pack, operator: sql, inputs: [{{from: {{job: ranges}}}}], outputs: [packed],
     config: {{sql: "SELECT 1"}}}}
"""


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(st.permutations([(0, 9), (10, 14), (15, 24), (25, 39), (0, 4), (40, 59)]), st.booleans())
def test_pieces_in_any_order_complete_each_range_once(
    benches: list[Bench], pieces: list[tuple[int, int]], at_a_time: bool
) -> None:
    bench_a = benches[0]
    name = f"t_{uuid4().hex[:12]}"
    assert (
        bench_a.user.post("/v1/dags", json={"text": _PIECES.format(name=name)}).status_code == 200
    )
    for first, last in pieces:
        body = {"dag": name, "job": "request", "start": first, "end": last}
        assert bench_a.user.post("/v1/triggers", json=body).status_code == 200
        if at_a_time:
            bench_a.live.drain()
    run_concurrently(
        [s.live.drain for s in benches]
    )  # the last parts of a range, routed by both replicas
    bench_a.live.drain()
    assert scopes(bench_a, name, "pack") == ["0-19", "20-39", "40-59"]
