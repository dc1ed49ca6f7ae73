"""Reading the change stream costs as much as there are new changes, however long the history is."""

import json
from collections.abc import Generator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from support.lifecycle.lifecycle import Bench, bench
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied
from support.users import new_org
from trace_etl.state.feed import changes
from trace_etl.state.feed.changes import ChangePosition

LOCAL = UUID("00000000-0000-0000-0000-000000000001")
WASTED_ROWS = 60
_HISTORY = """
INSERT INTO tasks (org_id, job_id, revision_id, runtime, dedupe_key, status, max_attempts,
                   timeout_seconds, lease_seconds, finished_at)
SELECT t.org_id, t.job_id, t.revision_id, t.runtime, 'history:' || n, 'Completed', 3, 60, 60, now()
  FROM (SELECT * FROM tasks WHERE status = 'Queued' LIMIT 1) t, generate_series(1, 20000) n;
INSERT INTO partitions (dataset_version, generation_no, partition_key, range_start, range_end,
                        storage_ref, row_count, byte_count, columns, task_id, attempt)
SELECT v.dataset_version, v.generation_no, n * 10 || '-' || n * 10 + 9, n * 10, n * 10 + 9,
       '{}', 1, 1, '[]', gen_random_uuid(), 1
  FROM dataset_versions v, generate_series(1, 4000) n;
INSERT INTO changes (org_id, kind, dag, body)
SELECT '00000000-0000-0000-0000-000000000001', 'deploy', 'x', '{}' FROM generate_series(1, 20000)
"""


@pytest.fixture(scope="module")
def old(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Bench]:
    objects = tmp_path_factory.mktemp("objects")
    with copied(templates) as dsns, live(secrets, dsns, objects) as running, bench(running) as made:
        made.tasks(5)
        for statement in _HISTORY.split(";"):
            made.rows(statement)
        made.rows("VACUUM ANALYZE")
        yield made


def rows_read(node: dict[str, Any]) -> float:
    """Count the rows that a plan reads from the large tables."""
    mine = 0.0
    if node.get("Relation Name") in ("tasks", "partitions", "changes"):
        taken = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        mine = taken * node["Actual Loops"]
    return mine + sum(rows_read(child) for child in node.get("Plans", []))


def cost(bench: Bench, org_id: UUID, after: ChangePosition, limit: int = 200) -> tuple[int, float]:
    """Return how many changes a read finds, and how many rows it scans for them."""
    end, _ = bench.live.run(bench.live.service.changes.head)
    values = changes.parameters(org_id, after, end, dag=None, kinds=None, limit=limit)
    with psycopg.connect(bench.live.dsns.state) as conn:
        found = len(conn.execute(changes._READ, values).fetchall())
        row = conn.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {changes._READ}", values).fetchone()
        assert row is not None
        plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return found, rows_read(plan[0]["Plan"])


def test_a_read_that_finds_no_changes_scans_almost_no_rows(old: Bench) -> None:
    end, _ = old.live.run(old.live.service.changes.head)
    found, rows = cost(old, LOCAL, end)
    assert found == 0 and rows < WASTED_ROWS


def test_a_read_scans_about_as_many_rows_as_it_finds(old: Bench) -> None:
    end, _ = old.live.run(old.live.service.changes.head)
    old.rows("UPDATE tasks SET cancel_requested = true WHERE status = 'Queued'")
    found, rows = cost(old, LOCAL, end)
    assert found == 5 and rows < found + WASTED_ROWS


def test_a_page_of_a_large_transaction_scans_only_one_page(old: Bench) -> None:
    found, rows = cost(old, LOCAL, ChangePosition(0))
    assert found == 200 and rows < 20 * 200  # at most one page per source and generation


def test_the_history_of_one_org_costs_another_org_nothing(old: Bench) -> None:
    found, rows = cost(old, UUID(new_org(old)), ChangePosition(0))
    assert found == 0 and rows < WASTED_ROWS
