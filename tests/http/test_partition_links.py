"""Partitions of two forks are never committed side by side, in whatever order tasks complete."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from support.lifecycle.lifecycle import Attempt, Bench


def block_hash(number: int, fork: str) -> str:
    return f"0x{fork}{number:062x}"


def publish(bench: Bench, attempt: Attempt, fork: str, **changes: Any) -> httpx.Response:
    """Complete an attempt whose blocks are of a fork; the forks share no block."""
    published = bench.write_output(attempt)
    start, end = attempt.scope["start"], attempt.scope["end"]
    verified = {
        "start": start,
        "end": end,
        "level": "roots",
        "checks": ["header_hash", "links"],
        "rules_version": 1,
        "endpoints": [f"node-{fork}:8545"],
        "first_parent_hash": block_hash(start - 1, fork) if start else "0x" + "00" * 32,
        "first_hash": block_hash(start, fork),
        "last_hash": block_hash(end, fork),
    }
    path = bench.prefix(attempt) / "_SUCCESS"
    path.write_text(json.dumps({**json.loads(path.read_text()), "verified": verified | changes}))
    return bench.complete(attempt, datasets_published=[published])


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_partition_of_another_fork_is_refused(shared: Bench, order: tuple[int, ...]) -> None:
    attempts = [shared.claimed(task_id) for task_id in shared.tasks(3)]
    forks = ["aa", "bb", "aa"]
    replies = {n: publish(shared, attempts[n], forks[n]) for n in order}
    committed = {n for n in order if replies[n].status_code == 200}
    assert committed == ({0, 2} if order[0] != 1 else {1})
    for n in set(order) - committed:
        problem = replies[n].json()
        assert replies[n].status_code == 409 and problem["code"] == "chain_mismatch"
        assert "node-aa:8545" in problem["detail"] and "node-bb:8545" in problem["detail"]
        assert shared.status(attempts[n].task_id) == "Running"
    rows = shared.rows(
        "SELECT verified ->> 'level' AS level FROM partitions WHERE dataset_version = %s",
        attempts[0].output["dataset_version"],
    )
    assert [row["level"] for row in rows] == ["roots"] * len(committed)


def test_neighbours_of_two_forks_that_commit_concurrently_are_not_both_accepted(
    shared: Bench,
) -> None:
    for _ in range(3):
        attempts = [shared.claimed(task_id) for task_id in shared.tasks(2)]
        with ThreadPoolExecutor(2) as pool:
            replies = list(pool.map(publish, [shared] * 2, attempts, ["aa", "bb"]))
        assert sorted(reply.status_code for reply in replies) == [200, 409]


def test_partitions_that_run_again_can_be_replaced_one_after_the_other(shared: Bench) -> None:
    dag = shared.dag()
    old = shared.tasks(2, dag=dag)
    for task_id in old:
        assert publish(shared, shared.claimed(task_id), "aa").status_code == 200
    # One partition alone cannot move to another fork.
    (again,) = run_again(shared, old[:1])
    assert publish(shared, shared.claimed(again), "bb").status_code == 409
    (neighbour,) = run_again(shared, old[1:])
    assert publish(shared, shared.claimed(neighbour), "bb").status_code == 200
    (last,) = run_again(shared, old[:1])
    assert publish(shared, shared.claimed(last), "bb").status_code == 200


def run_again(bench: Bench, task_ids: list[str]) -> list[str]:
    """Create tasks with the scopes of others, as an invalidation does."""
    query = """
        SELECT task_id::text FROM create_tasks(ARRAY(
            SELECT new_task(org_id, job_id, revision_id, runtime, bulk, 'again:' || gen_random_uuid(),
                            max_attempts, max_concurrency, timeout_seconds, lease_seconds,
                            dataset_uuid, dataset_version, partition_key, range_start, range_end,
                            cursor_value, invalidation_id)
              FROM tasks WHERE task_id = ANY(%s::uuid[])))
    """
    return [row["task_id"] for row in bench.rows(query, task_ids)]


def test_a_marker_of_other_blocks_is_refused(shared: Bench) -> None:
    attempt = shared.attempt()
    reply = publish(shared, attempt, "aa", end=8)
    assert reply.status_code == 422 and "were verified" in reply.text
