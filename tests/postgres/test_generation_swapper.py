"""The generation swapper: readers see all or nothing, replicas do not conflict, and a crash changes nothing."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import psycopg
import pytest

from support.dags.rollouts import RolloutDag
from support.lifecycle.lifecycle import Bench, run_behind_lock, run_concurrently

# Two datasets whose versions move together, and the partitions committed to each, in one snapshot.
_READ_BOTH = """
SELECT p.name, d.dataset_version, count(c.partition_key)
  FROM publications p JOIN datasets d USING (dataset_uuid)
  LEFT JOIN partitions c ON c.dataset_version = d.dataset_version
 WHERE p.name = ANY(%s) GROUP BY p.name, d.dataset_version ORDER BY p.name
"""


@pytest.fixture
def story(one: Bench) -> RolloutDag:
    return RolloutDag(one)


def build_new_generations(story: RolloutDag) -> None:
    """Commit everything that the new generations need, without moving a pointer."""
    story.deploy_and_build()
    story.deploy(column=2)
    story.finish_all("work", "after")


@contextmanager
def observed_states(story: RolloutDag) -> Generator[Callable[[], set]]:
    """Query both datasets continuously. The yielded function returns every state seen so far."""
    names = [f"{story.name}_out", f"{story.name}_done"]
    stop, began = threading.Event(), threading.Event()
    seen: set = set()

    def observe() -> None:
        with psycopg.connect(story.bench.live.dsns.state, autocommit=True) as conn:
            while not stop.is_set():
                seen.add(tuple(conn.execute(_READ_BOTH, (names,)).fetchall()))
                began.set()

    thread = threading.Thread(target=observe)
    thread.start()
    try:
        assert began.wait(120)
        yield lambda: seen
    finally:
        stop.set()
        thread.join(120)


def test_a_reader_sees_either_all_old_or_all_new_generations(story: RolloutDag) -> None:
    build_new_generations(story)
    with observed_states(story) as seen:
        (old,) = set(seen())
        assert story.swap()
        assert story.roll_back().status_code == 200
        story.deploy(column=2)
        assert story.swap()
        (new,) = {state for state in seen() if state != old} or {None}
    assert [count for _, _, count in old] == [3, 3]
    assert [count for _, _, count in new] == [3, 3]
    assert {version for _, version, _ in old}.isdisjoint(version for _, version, _ in new)
    assert seen() == {old, new}


def test_only_one_of_two_replicas_swaps_a_generation(
    story: RolloutDag, replicas: list[Bench]
) -> None:
    build_new_generations(story)
    swaps = [bench.live.service.swapper.swap_once for bench in replicas]
    calls = [
        lambda bench=bench, swap=swap: bench.live.run(swap)
        for bench, swap in zip(replicas, swaps, strict=True)
    ]
    key = f"deploy:00000000-0000-0000-0000-000000000001:{story.name}"
    lock = f"SELECT pg_advisory_xact_lock(hashtextextended('{key}', 0))"
    assert sorted(run_behind_lock(story.bench.live.dsns.state, lock, calls)) == [0, 1]
    assert story.rollout()["state"] == "complete"
    assert run_concurrently(calls) == [0, 0]


def test_a_swapper_that_loses_its_connection_changes_nothing(story: RolloutDag) -> None:
    build_new_generations(story)
    before = story.bench.dump()
    swap = story.bench.live.service.swapper.swap_once
    dsn = story.bench.live.dsns.state
    with psycopg.connect(dsn) as holder, psycopg.connect(dsn, autocommit=True) as killer:
        holder.execute("LOCK TABLE partitions IN ROW EXCLUSIVE MODE")
        died: list[BaseException] = []

        def run() -> None:
            try:
                story.bench.live.run(swap)
            except psycopg.OperationalError as error:
                died.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        query = """
            SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'
               AND query LIKE 'LOCK TABLE partitions%'
        """
        while not killer.execute(query).fetchall():
            assert thread.is_alive()
        thread.join(120)
    assert len(died) == 1
    assert story.bench.dump() == before
    assert story.rollout()["state"] == "building"
    assert story.swap()


def test_a_partition_committed_during_a_swap_is_not_lost(story: RolloutDag) -> None:
    """A partition committed to the old generation after the swapper's first check delays the swap."""
    build_new_generations(story)
    story.trigger(30, 39)
    live, building = story.queued("work")
    if story.bench.row(live)["bulk"]:
        live, building = building, live
    dsn = story.bench.live.dsns.state
    with psycopg.connect(dsn) as late:
        # Like a completion: an uncommitted row of the old generation.
        late.execute(
            """INSERT INTO partitions (dataset_version, generation_no, partition_key, range_start,
                   range_end, storage_ref, row_count, byte_count, columns, task_id, attempt)
               SELECT v.dataset_version, v.generation_no, '30-39', 30, 39, '{}', 1, 1, '[]', %s, 1
                 FROM publications p JOIN datasets d USING (dataset_uuid)
                 JOIN dataset_versions v USING (dataset_version) WHERE p.name = %s""",
            (live, f"{story.name}_out"),
        )
        swapping = threading.Thread(
            target=story.bench.live.run, args=(story.bench.live.service.swapper.swap_once,)
        )
        swapping.start()
        with psycopg.connect(dsn, autocommit=True) as watch:
            waits = """
                SELECT FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock'
                   AND query LIKE 'LOCK TABLE partitions%'
            """
            while not watch.execute(waits).fetchall():
                assert swapping.is_alive()
        late.commit()
        swapping.join(120)
    assert story.rollout()["state"] == "building"
    assert story.rollout()["targets"][-1]["missing"] == [[30, 39]]


def test_a_rolled_back_rollout_is_not_swapped(story: RolloutDag) -> None:
    build_new_generations(story)
    before = story.seen("out")
    assert story.roll_back().status_code == 200
    assert not story.swap()
    assert story.seen("out") == before


def test_the_swapper_polls_a_rollout_less_often_when_no_task_works_on_it(
    replicas: list[Bench],
) -> None:
    swapper = replicas[1].live.service.swapper
    story = RolloutDag(replicas[1])
    story.deploy_and_build()
    story.deploy(column=2)
    replicas[1].live.run(swapper.swap_once)
    assert replicas[1].live.run(swapper.next_due) is not None
    for task_id in story.queued("work"):
        assert story.bench.cancel(task_id).status_code == 200
    others = "UPDATE rollouts SET state = 'superseded', ended_at = now() WHERE state = 'building'"
    mine = "SELECT dag_version FROM dags WHERE name = %s"
    story.bench.rows(f"{others} AND dag_version <> ({mine})", story.name)
    replicas[1].live.run(swapper.swap_once)
    assert replicas[1].live.run(swapper.next_due) is None
