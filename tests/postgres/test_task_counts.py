"""The maintained task counts of a job always equal the number of its tasks."""

import random
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from support.lifecycle.lifecycle import Bench
from trace_etl.state.tasks import task_counts

STATUSES = ("Queued", "Running", "Completed", "Failed", "Canceled")
SEED = """
INSERT INTO tasks (org_id, job_id, revision_id, runtime, dedupe_key, max_attempts, status,
                   timeout_seconds, lease_seconds, started_at, finished_at)
SELECT j.org_id, j.job_id, j.revision_id, 'ecs_python', 'seed' || n, 3, 'Completed', 3600, 120,
       now(), now()
  FROM jobs j, generate_series(1, %s) n WHERE j.name = 'after'
"""


def count_batch(bench: Bench, size: int = 50_000) -> int:
    return bench.live.run(replace(bench.live.service.task_counter, batch_size=size).count_once)


def reported(bench: Bench) -> dict[tuple[str, str], int]:
    jobs = bench.user.get("/v1/tasks/summary").json()["jobs"]
    return {(j["job"], s): j[s.lower()] for j in jobs for s in STATUSES if j[s.lower()]}


def actual(bench: Bench) -> dict[tuple[str, str], int]:
    query = (
        "SELECT j.name, t.status, count(*) FROM tasks t JOIN jobs j USING (job_id) GROUP BY 1, 2"
    )
    return {(row["name"], row["status"]): row["count"] for row in bench.rows(query)}


def change_task(bench: Bench, rng: random.Random, name: str) -> None:
    """Apply one change to a random task."""
    tasks = [row["task_id"] for row in bench.rows("SELECT task_id FROM tasks ORDER BY task_id")]
    task_id = rng.choice(tasks)
    changes: dict[str, str] = {
        "end": "UPDATE tasks SET status = 'Completed', finished_at = now() WHERE task_id = %s",
        "fail": "UPDATE tasks SET status = 'Failed', finished_at = now() WHERE task_id = %s",
        "again": """UPDATE tasks SET status = 'Queued', finished_at = NULL, lease_token = NULL
                     WHERE task_id = %s""",
        "stop": "UPDATE tasks SET cancel_requested = NOT cancel_requested WHERE task_id = %s",
        "forget": "DELETE FROM tasks WHERE task_id = %s",
    }
    bench.rows(changes[name], task_id)


@pytest.mark.parametrize("seed", range(2))
def test_the_counts_are_exact_after_any_sequence_of_changes(alone: Bench, seed: int) -> None:
    rng = random.Random(seed)
    alone.tasks(12)
    for _ in range(50):
        name = rng.choice(
            ["end", "end", "fail", "again", "stop", "forget", "count_batch", "count_batch"]
        )
        if name == "count_batch":
            count_batch(alone, rng.choice([1, 3, 1000]))
        elif alone.rows("SELECT 1 FROM tasks LIMIT 1"):
            change_task(alone, rng, name)
        assert reported(alone) == actual(alone)
    while count_batch(alone):
        pass
    assert reported(alone) == actual(alone)
    assert alone.rows("SELECT 1 FROM task_tallies WHERE n < 0") == []


def test_a_task_that_commits_during_counting_is_counted_once(alone: Bench) -> None:
    first, second, third = alone.tasks(3)
    end = "UPDATE tasks SET status = 'Completed', finished_at = now() WHERE task_id = %s"
    again = "UPDATE tasks SET status = 'Queued', finished_at = NULL WHERE task_id = %s"
    alone.rows(end, third)
    with psycopg.connect(alone.live.dsns.state) as slow:
        slow.execute(end, (first,))
        slow.execute(again, (third,))
        alone.rows(end, second)
        count_batch(alone)
        assert reported(alone) == actual(alone)
        slow.commit()
    assert reported(alone) == actual(alone)
    count_batch(alone)
    assert reported(alone) == actual(alone)
    assert reported(alone)["work", "Completed"] == 2


def test_already_counted_tasks_are_not_read_again(alone: Bench) -> None:
    alone.dag()
    alone.rows(SEED, 20_000)
    assert reported(alone)["after", "Completed"] == 20_000
    while count_batch(alone, 5_000):
        pass
    assert reported(alone)["after", "Completed"] == 20_000
    alone.rows("ANALYZE tasks")
    with psycopg.connect(alone.live.dsns.state) as conn:
        (mark,) = conn.execute("SELECT counted_to::text FROM task_tally_marks").fetchone() or ()
        values = {"org_id": alone.live.cfg.org_id, "dag": None, "mark": mark}
        query = "EXPLAIN (ANALYZE, FORMAT JSON) " + task_counts._COUNT_TASKS
        (plan,) = conn.execute(query, values).fetchone() or ()
    assert max(rows_of(plan[0]["Plan"])) < 1_000


def rows_of(node: dict[str, Any]) -> list[float]:
    """Return how many rows each node of a plan read."""
    below = [n for part in node.get("Plans", []) for n in rows_of(part)]
    dropped = node.get("Rows Removed by Filter", 0)
    return [(node["Actual Rows"] + dropped) * node["Actual Loops"], *below]
