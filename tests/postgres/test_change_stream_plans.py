"""A look at the stream of changes costs what is new, whatever history lies before it."""

import json
from collections.abc import Generator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from support.dispatcher import Secrets, live
from support.lifecycle import Bench, bench
from support.postgres import Templates, copied
from support.users import new_org
from trace_etl.state.feed import changes
from trace_etl.state.feed.changes import ChangePosition

LOCAL = UUID("00000000-0000-0000-0000-000000000001")
IN_VAIN = 60
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


def read(node: dict[str, Any]) -> float:
    """Rows that a plan took from tables and threw away, or took at all from large ones."""
    mine = 0.0
    if node.get("Relation Name") in ("tasks", "partitions", "changes"):
        taken = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        mine = taken * node["Actual Loops"]
    return mine + sum(read(child) for child in node.get("Plans", []))


def cost(bench: Bench, org_id: UUID, after: ChangePosition, limit: int = 200) -> tuple[int, float]:
    """How many changes a look finds, and how many rows it reads for them."""
    end, _ = bench.live.run(bench.live.service.changes.head)
    values = changes.parameters(org_id, after, end, dag=None, kinds=None, limit=limit)
    with psycopg.connect(bench.live.dsns.state) as conn:
        found = len(conn.execute(changes._READ, values).fetchall())
        row = conn.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {changes._READ}", values).fetchone()
        assert row is not None
        plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return found, read(plan[0]["Plan"])


def test_a_look_that_finds_nothing_reads_next_to_nothing(old: Bench) -> None:
    end, _ = old.live.run(old.live.service.changes.head)
    found, rows = cost(old, LOCAL, end)
    assert found == 0 and rows < IN_VAIN


def test_a_look_reads_about_what_it_finds(old: Bench) -> None:
    end, _ = old.live.run(old.live.service.changes.head)
    old.rows("UPDATE tasks SET cancel_requested = true WHERE status = 'Queued'")
    found, rows = cost(old, LOCAL, end)
    assert found == 5 and rows < found + IN_VAIN


def test_a_page_of_a_large_transaction_reads_a_page_not_the_transaction(old: Bench) -> None:
    found, rows = cost(old, LOCAL, ChangePosition(0))
    assert found == 200 and rows < 20 * 200  # of every source and generation at most a page


def test_another_org_pays_nothing_for_it(old: Bench) -> None:
    found, rows = cost(old, UUID(new_org(old)), ChangePosition(0))
    assert found == 0 and rows < IN_VAIN
