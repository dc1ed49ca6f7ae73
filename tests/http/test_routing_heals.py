"""Routing: lost, doubled and shuffled events end in the same state; ranges are told of once."""

from collections.abc import Generator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.dispatcher import Live, Secrets, live
from support.lifecycle import Attempt, Bench, bench, run_concurrently
from support.postgres import Templates, copied
from trace_etl.state.db.connection import Connection
from trace_etl.state.routing import events


@pytest.fixture(scope="module")
def stages(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[list[Bench]]:
    """Two replicas whose reconcilers wait for nobody."""
    objects = tmp_path_factory.mktemp("objects")
    now = timedelta(0)
    with (
        copied(templates) as dsns,
        live(secrets, dsns, objects, reconcile_grace=now) as one,
        live(secrets, dsns, objects, reconcile_grace=now) as two,
        bench(one) as first,
        bench(two) as second,
    ):
        yield [first, second]


@pytest.fixture
def stage(stages: list[Bench]) -> Bench:
    return stages[0]


def reconcile(live: Live) -> None:
    while live.run(live.service.reconciler.reconcile_once):
        pass


def lose(stage: Bench, *kinds: str) -> int:
    return len(stage.rows("DELETE FROM outbox WHERE kind = ANY(%s) RETURNING 1", list(kinds)))


def made(stage: Bench, dag: str) -> list[tuple[str, str, int]]:
    """Every task there is, as far as it does not depend on luck."""
    found = stage.rows(
        """
        SELECT j.name, coalesce(t.partition_key, t.cursor_value::text) AS scope, count(*) AS n
          FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
         WHERE g.name = %s GROUP BY 1, 2 ORDER BY 1, 2
        """,
        dag,
    )
    return [(row["name"], row["scope"], row["n"]) for row in found]


def publish(stage: Bench, attempt: Attempt, *, event: bool = True) -> None:
    body: dict[str, Any] = {"datasets_published": [stage.write_output(attempt)]}
    if event:
        body["events"] = [attempt.event()]
    assert stage.complete(attempt, **body).status_code == 200


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
def test_any_order_and_any_loss_end_in_the_same_state(stages: list[Bench], story: list) -> None:
    stage = stages[0]
    dag = stage.dag()

    def trigger(cell: int) -> None:
        body = {"dag": dag.name, "job": "request", "start": cell * 10, "end": cell * 10 + 9}
        assert stage.user.post("/v1/triggers", json=body).status_code == 200

    def work(nth: int, *, event: bool = True) -> None:
        if waiting := stage.waiting(dag, "work"):
            publish(stage, stage.claimed(waiting[nth % len(waiting)]), event=event)

    def double(nth: int) -> None:
        known = stage.rows("SELECT event_id FROM events ORDER BY event_id")
        if known:
            chosen = known[nth % len(known)]["event_id"]
            stage.rows("INSERT INTO outbox (kind, subject) VALUES ('route_event', %s)", chosen)

    for what, n in [*story, *(("trigger", cell) for cell in range(6))]:
        if what == "trigger":
            trigger(n)
        elif what in ("work", "quiet"):
            work(n, event=what == "work")
        elif what == "lose":
            lose(stage, n)
        elif what == "double":
            double(n)
        elif what == "drain":
            stages[n].live.drain()
        else:
            reconcile(stages[n].live)
    for _ in range(3):
        reconcile(stage.live)
        stage.live.drain()
        while stage.waiting(dag, "work"):
            work(0)
    cells = [f"{n * 10}-{n * 10 + 9}" for n in range(6)]
    expected = {(job, cell, 1) for job in ("request", "split", "work", "after") for cell in cells}
    assert set(made(stage, dag.name)) == expected


def test_an_output_that_nobody_told_of_finds_its_consumers(stage: Bench) -> None:
    attempt = stage.attempt(dag=(dag := stage.dag()))
    publish(stage, attempt, event=False)
    stage.live.drain()
    assert stage.waiting(dag, "after") == []
    reconcile(stage.live)
    assert len(stage.waiting(dag, "after")) == 1


def test_what_an_output_was_made_from_is_not_asked_for_again(stage: Bench) -> None:
    attempt = stage.attempt(dag=(dag := stage.dag()))
    publish(stage, attempt)
    stage.live.drain()
    (after,) = stage.waiting(dag, "after")
    publish(stage, stage.claimed(after))
    stage.rows("UPDATE tasks SET dedupe_key = 'other' WHERE task_id = %s", after)
    stage.rows("DELETE FROM reconciled_edges")
    reconcile(stage.live)
    assert stage.waiting(dag, "after") == []


def test_the_outbox_has_the_first_go(secrets: Secrets, stage: Bench) -> None:
    attempt = stage.attempt(dag=(dag := stage.dag()))
    publish(stage, attempt)
    with live(secrets, stage.live.dsns, stage.live.objects) as patient:
        reconcile(patient)
    assert stage.waiting(dag, "after") == []


def test_a_paused_consumer_is_left_alone_until_it_goes_on(stage: Bench) -> None:
    attempt = stage.attempt(dag=(dag := stage.dag()))
    publish(stage, attempt, event=False)
    body = {"dag": dag.name, "job": "after"}
    assert stage.user.post("/v1/pauses", json=body).status_code == 200
    reconcile(stage.live)
    assert stage.waiting(dag, "after") == []
    assert stage.user.post("/v1/pauses/resume", json=body).status_code == 200
    reconcile(stage.live)
    assert len(stage.waiting(dag, "after")) == 1


def test_both_replicas_reconciling_at_once_heal_once(stages: list[Bench]) -> None:
    stage = stages[0]
    dag = stage.dag()
    for task_id in stage.tasks(5, dag=dag):
        publish(stage, stage.claimed(task_id), event=False)
    run_concurrently([lambda s=s: reconcile(s.live) for s in stages for _ in range(3)])
    assert len(stage.waiting(dag, "after")) == 5


async def test_an_event_for_a_hundred_consumers_is_one_statement(stage: Bench) -> None:
    jobs = "\n".join(
        f"  - {{name: c{n}, operator: sql, inputs: [{{from: {{job: request}}}}],"
        f' outputs: [o{n}], config: {{sql: "SELECT {n}"}}}}'
        for n in range(100)
    )
    name = f"t_{uuid4().hex[:12]}"
    source = "  - {name: request, activation: source, source: {kind: manual}, outputs: [asked]}"
    text = f"name: {name}\njobs:\n{source}\n{jobs}\n"
    assert stage.user.post("/v1/dags", json={"text": text}).status_code == 200
    body = {"dag": name, "job": "request", "start": 0, "end": 9}
    event_id = UUID(stage.user.post("/v1/triggers", json=body).json()["event_id"])
    conn = await Connection.connect(stage.live.dsns.state, autocommit=True)
    async with conn:
        # One statement is one transaction here: nothing else could make it whole.
        assert len((await events.route(conn, [event_id])).task_ids) == 100
        assert await events.route(conn, [event_id]) == events.RoutedEvents([], [])
    assert len(made(stage, name)) == 101


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
def follower(stage: Bench) -> tuple[str, Attempt]:
    """A running attempt that moves a dataset by cursors."""
    name = f"t_{uuid4().hex[:12]}"
    assert stage.user.post("/v1/dags", json={"text": _CURSORS.format(name=name)}).status_code == 200
    body = {"dag": name, "job": "request", "start": 0, "end": 9}
    assert stage.user.post("/v1/triggers", json=body).status_code == 200
    stage.live.drain()
    return name, stage.claimed(queued(stage, name, "follow")[0])


def queued(stage: Bench, dag: str, job: str) -> list[str]:
    query = {"dag": dag, "job": job, "status": "Queued", "limit": 1000}
    items = stage.user.get("/v1/tasks", params=query).json()["items"]
    return [i["task_id"] for i in sorted(items, key=lambda i: i["cursor"] or 0)]


def scopes(stage: Bench, dag: str, job: str) -> list[str]:
    found = stage.rows(
        """
        SELECT t.partition_key FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
         WHERE g.name = %s AND j.name = %s ORDER BY t.range_start
        """,
        dag,
        job,
    )
    return [row["partition_key"] for row in found]


def move(stage: Bench, attempt: Attempt, *cursors: int) -> None:
    reply = stage.events(attempt, *(attempt.event(cursor=c) for c in cursors))
    assert reply.status_code == 200, reply.text
    stage.live.drain()


def test_a_cursor_advances_though_nothing_matched(
    stage: Bench, follower: tuple[str, Attempt]
) -> None:
    name, attempt = follower
    move(stage, attempt, 100)
    first = stage.claimed(queued(stage, name, "read")[0])
    assert (first.scope["cursor"], first.scope["after"]) == (100, None)
    assert first.claimed["task"]["inputs"][0]["where"] == {"kind": ["a", "b"]}
    assert stage.complete(first).status_code == 200  # no row, no output
    move(stage, attempt, 250)
    second = stage.claimed(queued(stage, name, "read")[0])
    assert (second.scope["cursor"], second.scope["after"]) == (250, 100)
    shown = stage.user.get(f"/v1/datasets/{name}_head").json()["consumers"]
    assert {(c["job"], c["cursor"]) for c in shown} == {("read", 100), ("ranges", 250)}


def test_a_cursor_never_goes_back(stage: Bench, follower: tuple[str, Attempt]) -> None:
    name, attempt = follower
    move(stage, attempt, 10, 20)
    early, late = (stage.claimed(t) for t in queued(stage, name, "read"))
    assert stage.complete(late).status_code == 200
    assert stage.complete(early).status_code == 200
    move(stage, attempt, 30)
    assert stage.claimed(queued(stage, name, "read")[0]).scope["after"] == 20


def test_a_failed_reading_advances_nothing(stage: Bench, follower: tuple[str, Attempt]) -> None:
    name, attempt = follower
    move(stage, attempt, 10)
    read = stage.claimed(queued(stage, name, "read")[0])
    stage.complete(read, "Failed", error_message="x")
    assert stage.next_attempt(read).scope["after"] is None


def take_back(stage: Bench, attempt: Attempt, first: int, last: int, head: int) -> None:
    """A reorganisation that left the chain shorter."""
    item = {"dataset_uuid": attempt.output["dataset_uuid"], "kind": "row_range"}
    body = {
        "events": [attempt.event(cursor=head)],
        "invalidations": [{**item, "start": first, "end": last}],
    }
    assert stage.call("/v1/task/events", attempt, **body).status_code == 200
    stage.live.drain()


def read_all(stage: Bench, name: str) -> list[tuple[int | None, int]]:
    """Do what waits; returns what each task was told to read."""
    seen: list[tuple[int | None, int]] = []
    for task_id in queued(stage, name, "read"):
        attempt = stage.claimed(task_id)
        seen.append((attempt.scope["after"], attempt.scope["cursor"]))
        assert stage.complete(attempt).status_code == 200
    return seen


def test_what_was_taken_back_is_read_again_when_it_comes(
    stage: Bench, follower: tuple[str, Attempt]
) -> None:
    name, attempt = follower
    move(stage, attempt, 100, 105, 110)
    assert len(read_all(stage, name)) == 3
    take_back(stage, attempt, 104, 110, 104)
    assert read_all(stage, name) == [(103, 104)]
    move(stage, attempt, 105)
    assert read_all(stage, name) == [(104, 105)]
    move(stage, attempt, 105, 110)  # told twice: the second time is no news
    assert read_all(stage, name) == [(105, 110)]


def test_a_reading_from_before_does_not_carry_the_cursor_past_it(
    stage: Bench, follower: tuple[str, Attempt]
) -> None:
    name, attempt = follower
    move(stage, attempt, 110)
    early = stage.claimed(queued(stage, name, "read")[0])
    take_back(stage, attempt, 104, 110, 104)
    assert stage.complete(early).status_code == 200
    assert (None, 104) in read_all(stage, name)
    move(stage, attempt, 108)
    assert read_all(stage, name)[-1] == (104, 108)


def publish_read(stage: Bench, attempt: Attempt) -> None:
    """Complete a reading as the runner does: all that is new up to the cursor, one partition."""
    after = attempt.scope["after"]
    first = 0 if after is None else after + 1
    item = stage.write_output(attempt) | {
        "range_start": first,
        "range_end": attempt.scope["cursor"],
    }
    reply = stage.complete(attempt, datasets_published=[item])
    assert reply.status_code == 200, reply.text


def test_a_reading_never_begins_inside_of_what_an_earlier_one_made(
    stage: Bench, follower: tuple[str, Attempt]
) -> None:
    """Late cursors leave the consumer in the middle of a partition that must be made again."""
    name, attempt = follower
    move(stage, attempt, 103)
    publish_read(stage, stage.claimed(queued(stage, name, "read")[0]))
    take_back(stage, attempt, 101, 103, 71)
    waiting = [stage.row(task_id) for task_id in queued(stage, name, "read")]
    (late,) = [row["task_id"] for row in waiting if row["cursor_value"] == 71]
    (again,) = [row["task_id"] for row in waiting if row["partition_key"] == "0-103"]
    publish_read(stage, stage.claimed(str(late)))  # what stands covers it: it is not shown
    move(stage, attempt, 105)
    (next_id,) = [t for t in queued(stage, name, "read") if t != str(again)]
    following = stage.claimed(next_id)
    assert (following.scope["after"], following.scope["cursor"]) == (-1, 105)
    publish_read(stage, following)
    answer = stage.claimed(str(again))
    reply = stage.complete(answer, datasets_published=[stage.write_output(answer)])
    assert reply.status_code == 200, reply.text
    query = "SELECT partition_key FROM partitions WHERE dataset_version = %s"
    assert stage.rows(query, answer.output["dataset_version"]) == [{"partition_key": "0-105"}]


# --- ranges -----------------------------------------------------------------------------------


def test_cursors_complete_aligned_ranges(stage: Bench, follower: tuple[str, Attempt]) -> None:
    name, attempt = follower
    move(stage, attempt, 18)
    assert scopes(stage, name, "pack") == []  # blocks before `start` never come: 0-9 stays open
    move(stage, attempt, 19)
    assert scopes(stage, name, "pack") == ["10-19"]
    move(stage, attempt, 47)
    assert scopes(stage, name, "pack") == ["10-19", "20-29", "30-39"]


def test_an_invalid_stretch_makes_every_told_range_invalid(
    stage: Bench, follower: tuple[str, Attempt]
) -> None:
    name, attempt = follower
    move(stage, attempt, 39)
    for task_id in queued(stage, name, "pack"):
        publish(stage, stage.claimed(task_id))
    item = {"dataset_uuid": attempt.output["dataset_uuid"], "kind": "row_range"}
    rows = [{**item, "start": 17, "end": 23, "reason": "reorg"}]
    assert stage.call("/v1/task/events", attempt, invalidations=rows).status_code == 200
    stage.live.drain()
    stage.live.drain()
    again = [stage.claimed(t).claimed["task"] for t in queued(stage, name, "pack")]
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
    stages: list[Bench], pieces: list[tuple[int, int]], at_a_time: bool
) -> None:
    stage = stages[0]
    name = f"t_{uuid4().hex[:12]}"
    assert stage.user.post("/v1/dags", json={"text": _PIECES.format(name=name)}).status_code == 200
    for first, last in pieces:
        body = {"dag": name, "job": "request", "start": first, "end": last}
        assert stage.user.post("/v1/triggers", json=body).status_code == 200
        if at_a_time:
            stage.live.drain()
    run_concurrently([s.live.drain for s in stages])  # the last pieces of a range, on both replicas
    stage.live.drain()
    assert scopes(stage, name, "pack") == ["0-19", "20-39", "40-59"]
