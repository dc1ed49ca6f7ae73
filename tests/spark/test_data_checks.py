"""Data checks run on the rows of an attempt, before they can be committed."""

from pathlib import Path
from typing import Any

import pytest

from support.spark import spark_tasks as tasks
from trace_etl.api.task.checks import CheckResult
from trace_etl.api.task.payload import TaskPayload
from trace_etl.spark.errors import BadSql, CheckFailed
from trace_etl.spark.runner import SparkRunner

ROWS = """
SELECT * FROM VALUES
    (1, 'a', 5, X'01FF', current_timestamp() - INTERVAL 2 HOURS),
    (2, 'a', NULL, X'02FF', current_timestamp() - INTERVAL 3 HOURS),
    (3, NULL, -4, X'03FF', NULL),
    (4, NULL, 7, X'04FF', NULL)
    AS t (id, name, amount, hash, at)
"""
CHECKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # kind: a rule that passes, and one that fails
    "condition": ({"sql": "id > 0 AND id < 5"}, {"sql": "amount > 0"}),
    "unique": ({"columns": ["id", "name"]}, {"columns": ["name"]}),
    "not_null": ({"columns": ["id", "hash"]}, {"columns": ["id", "amount"]}),
    "rows": ({"min": 4, "max": 4}, {"max": 3}),
    "freshness": (
        {"column": "at", "within_seconds": 3 * 3600},
        {"column": "at", "within_seconds": 3600},
    ),
}
FOUND = {
    # kind: failing rows, and the message or its beginning
    "condition": (1, "1 of 4 rows do not meet `amount > 0`, for example hash=0x03ff"),
    "unique": (2, "2 of 4 rows share their name, for example name=a"),
    "not_null": (1, "1 of 4 rows have no value in id, amount, for example hash=0x02ff"),
    "rows": (0, "4 rows, but at most 3 are allowed"),
    "freshness": (0, "the newest at is "),
}


def with_checks(payload: TaskPayload, *checks: dict[str, Any]) -> TaskPayload:
    """Return a task with checks of its first output."""
    first = {"output": payload.outputs[0].name, "on_failure": "warn"}
    named = [{**first, "name": f"c{n}", **check} for n, check in enumerate(checks)]
    return TaskPayload.model_validate({**payload.model_dump(by_alias=True), "checks": named})


def run_checks(runner: SparkRunner, payload: TaskPayload) -> list[CheckResult]:
    return runner.run(payload).checks


def test_each_kind_of_check_passes_good_rows_and_counts_and_names_bad_ones(
    runner: SparkRunner,
) -> None:
    payload = with_checks(
        tasks.select(ROWS, scope={"partition_key": "day"}),
        *({"kind": kind, "rule": good} for kind, (good, _) in CHECKS.items()),
        *({"kind": kind, "rule": bad, "key": ["hash"]} for kind, (_, bad) in CHECKS.items()),
    )
    # The key of a `unique` check cannot be another column: the rows that share it have several.
    results = run_checks(runner, payload)
    good, bad = results[: len(CHECKS)], results[len(CHECKS) :]
    assert [(r.passed, r.failing_rows, r.message, r.samples) for r in good] == [
        (True, 0, "", [])
    ] * len(CHECKS)
    assert {r.checked_rows for r in results} == {4}
    assert {r.partition_key for r in results} == {"day"}
    for (kind, (failing, problem)), result in zip(FOUND.items(), bad, strict=True):
        assert not result.passed
        assert result.failing_rows == failing, kind
        assert f"of answer failed: {problem}" in result.message
    [late] = [r.message for r in bad if "newest" in r.message]
    assert "s ago, but at most 3600 s are allowed" in late
    assert [s for r in bad for s in r.samples] == [
        {"hash": "0x03ff"},
        {"name": "a"},
        {"hash": "0x02ff"},
    ]


def test_a_blocking_check_fails_the_attempt_for_good_before_anything_is_marked(
    runner: SparkRunner, objects: Path
) -> None:
    payload = with_checks(
        tasks.select(ROWS),
        {"kind": "rows", "rule": {"min": 1}},
        {"kind": "not_null", "rule": {"columns": ["amount"]}, "on_failure": "block"},
        {"kind": "unique", "rule": {"columns": ["name"]}, "on_failure": "block", "name": "names"},
    )
    with pytest.raises(CheckFailed) as failed:
        runner.run(payload)
    assert failed.value.code == "check_failed"
    assert not failed.value.retryable
    assert failed.value.detail == (
        "check c1 of answer failed: 1 of 4 rows have no value in amount, for example id=2, name=a, "
        "amount=None; check names of answer failed: 2 of 4 rows share their name, for example "
        "name=a. Nothing was committed"
    )
    assert [(r.name, r.passed) for r in failed.value.results] == [
        ("c0", True),
        ("c1", False),
        ("names", False),
    ]
    assert not (tasks.directory(objects, payload, "answer") / "_SUCCESS").exists()


def test_references_compare_with_inputs_and_with_other_outputs_of_the_task(
    runner: SparkRunner,
) -> None:
    within = {"kind": "references", "output": "logs"}
    ingested = with_checks(
        tasks.ingest(0, 9),
        {**within, "rule": {"columns": ["block_number"], "output": "blocks"}},
        {
            **within,
            "rule": {"columns": ["chain_id"], "output": "blocks", "to": ["block_number"]},
            "key": ["chain_id"],
        },
        {"kind": "unique", "rule": {"columns": ["block_number"]}},
        {"kind": "rows", "rule": {"min": 10, "max": 10}},
        {"kind": "condition", "rule": {"sql": "block_number % 2 = 0"}},
    )
    found, missing, *others = run_checks(runner, ingested)
    assert (found.passed, missing.passed) == (True, False)
    assert missing.failing_rows == missing.checked_rows > 0
    assert all(int(sample["chain_id"] or 0) > 9 for sample in missing.samples)
    assert [(r.passed, r.failing_rows) for r in others] == [(True, 0), (True, 0), (False, 5)]
    assert [s["block_number"] for s in others[-1].samples] == ["1", "3", "5", "7", "9"]

    sql = "SELECT block_number + 5 AS b, CAST(NULL AS BIGINT) AS c FROM blocks"
    reading = with_checks(
        tasks.select(sql, tasks.as_input(ingested, name="blocks")),
        *(
            {
                "kind": "references",
                "rule": {"columns": [column], "input": "blocks", "to": ["block_number"]},
            }
            for column in ("b", "c")
        ),
    )
    absent, null = run_checks(runner, reading)
    assert (absent.failing_rows, null.failing_rows) == (5, 0)
    assert "5 of 10 rows have b that blocks does not have" in absent.message


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        ({"kind": "condition", "rule": {"sql": "nowhere > 0"}}, "nowhere"),
        ({"kind": "condition", "rule": {"sql": "id"}}, "must be boolean, not int"),
        ({"kind": "condition", "rule": {"sql": "max(id) > 0"}}, "condition:"),
        ({"kind": "condition", "rule": {"sql": "id > 0) OR (id < 0"}}, "condition:"),
        ({"kind": "condition", "rule": {"sql": "true) UNION SELECT (1"}}, "one expression"),
        ({"kind": "condition", "rule": {"sql": "true) LIMIT (1"}}, "one expression"),
        ({"kind": "condition", "rule": {"sql": "id IN (SELECT id FROM checked_rows)"}}, "subquery"),
        ({"kind": "condition", "rule": {"sql": "id IN (SELECT 1 FROM other)"}}, "not an input"),
        (
            {"kind": "condition", "rule": {"sql": "reflect('java.lang.System', 'exit', 0) = ''"}},
            "not allowed",
        ),
        ({"kind": "condition", "rule": {"sql": "id > :scheduled_time"}}, "no parameter"),
        ({"kind": "unique", "rule": {"columns": ["idd"]}}, "answer has no column idd"),
        (
            {"kind": "freshness", "rule": {"column": "name", "within_seconds": 1}},
            "name is string; it must be a timestamp",
        ),
    ],
)
def test_a_check_that_cannot_run_on_the_columns_is_refused_by_name(
    runner: SparkRunner, check: dict[str, Any], problem: str
) -> None:
    with pytest.raises(BadSql, match="check c0") as refused:
        runner.run(with_checks(tasks.select(ROWS), check))
    assert problem in refused.value.detail


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        ("all", {"is_refresh": True}),
        ("2026-01-02", {"is_refresh": True, "partition_by": "day"}),
    ],
    ids=["whole dataset", "day"],
)
def test_checks_of_refreshes_see_the_rows_of_their_partition(
    runner: SparkRunner, objects: Path, key: str, fields: dict[str, Any]
) -> None:
    day = "timestamp'2026-01-0{} 12:00:00'"
    values = ", ".join(f"({n}, {day.format(1 + n % 3)})" for n in range(9))
    source = tasks.select(
        f"SELECT * FROM VALUES {values} AS t (id, at)", scope=tasks.range_scope(0, 9)
    )
    runner.run(source)
    read = {**tasks.as_input(source, name="answer"), "name": "rows", "time_column": "at"}
    made = tasks.select(
        "SELECT count(*) AS n, max(id) AS last FROM rows", read, scope={"partition_key": key}
    )
    payload = TaskPayload.model_validate({**made.model_dump(by_alias=True), **fields})
    expected = 9 if key == "all" else 3
    rule = {"kind": "condition", "rule": {"sql": f"n = {expected}"}}
    good, bad = (
        with_checks(payload, {**rule, "on_failure": "block"}, {"kind": "rows", "rule": {"max": 0}}),
        with_checks(
            payload, {"kind": "condition", "rule": {"sql": "n < 0"}, "on_failure": "block"}
        ),
    )
    results = run_checks(runner, good)
    assert [(r.partition_key, r.passed, r.checked_rows) for r in results] == [
        (key, True, 1),
        (key, False, 1),
    ]
    (tasks.directory(objects, good, "answer") / "_SUCCESS").unlink()
    with pytest.raises(CheckFailed, match=r"1 of 1 rows do not meet `n < 0`"):
        runner.run(bad)
    assert not (tasks.directory(objects, bad, "answer") / "_SUCCESS").exists()
