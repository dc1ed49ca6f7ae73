"""Cold data is checked against the chain: changed rows are found and their partition is reported."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.spark.spark_tasks import as_input, ingest, range_scope, rows, task
from trace_etl.api.task.payload import TaskPayload
from trace_etl.spark.errors import BadTask
from trace_etl.spark.operators.integrity_check import sample_ranges
from trace_etl.spark.runner import SparkRunner

TABLES = ("blocks", "transactions", "logs")


@pytest.fixture(scope="module")
def ingested(runner: SparkRunner) -> list[TaskPayload]:
    payloads = [ingest(0, 9), ingest(10, 19)]
    for payload in payloads:
        runner.run(payload)
    return payloads


def tamper(
    runner: SparkRunner, ingested: list[TaskPayload], table: str, sql: str
) -> dict[str, Any]:
    """Rewrite the second partition of the table with a SELECT."""
    given = as_input(*ingested, name=table)
    payload = task("sql", {"sql": sql}, [table], scope=range_scope(10, 19), inputs=[given])
    runner.run(payload)
    fresh = as_input(payload, name=table)
    return {**given, "partitions": [given["partitions"][0], *fresh["partitions"]]}


def _check(table: str, given: dict[str, Any], **config: Any) -> TaskPayload:
    return task(
        "integrity_check",
        {"table": table, **config},
        ["findings"],
        scope=range_scope(0, 19),
        inputs=[given],
    )


@pytest.mark.parametrize("table", TABLES)
def test_correct_data_has_no_findings(
    runner: SparkRunner, objects: Path, ingested: list[TaskPayload], table: str
) -> None:
    payload = _check(table, as_input(*ingested, name=table))
    result = runner.run(payload)
    assert rows(objects, payload, "findings") == [] and result.invalidations == []


@pytest.mark.parametrize(
    ("table", "sql", "wanted"),
    [
        ("blocks", "SELECT * FROM blocks WHERE block_number <> 12", (12, "missing", 1, 0)),
        (
            "blocks",
            "SELECT CASE WHEN block_number = 13 THEN X'00' ELSE block_hash END AS block_hash, "
            "* EXCEPT (block_hash) FROM blocks",
            (13, "other rows", 1, 1),
        ),
        (
            "blocks",
            "SELECT * FROM blocks UNION ALL SELECT * FROM blocks WHERE block_number = 14",
            (14, "another number of rows", 1, 2),
        ),
    ],
    ids=["gap", "hash", "duplicate"],
)
def test_changed_rows_are_found_and_their_partition_is_reported(
    runner: SparkRunner,
    objects: Path,
    ingested: list[TaskPayload],
    table: str,
    sql: str,
    wanted: tuple[Any, ...],
) -> None:
    given = tamper(runner, ingested, table, sql)
    payload = _check(table, given)
    result = runner.run(payload)
    found = [tuple(row.values()) for row in rows(objects, payload, "findings")]
    assert wanted in found and {row[0] for row in found} == {wanted[0]}
    [defect] = result.invalidations
    assert (defect.kind, defect.partition_key) == ("partition", "10-19")
    assert (defect.start, defect.end) == (10, 19)
    assert defect.dataset_uuid == given["dataset_uuid"] and f"block {wanted[0]}" in defect.reason


def test_a_sampled_check_finds_gaps_and_duplicates_in_all_blocks(
    runner: SparkRunner, objects: Path, ingested: list[TaskPayload]
) -> None:
    sql = (
        "SELECT * FROM blocks WHERE block_number <> 12 "
        "UNION ALL SELECT * FROM blocks WHERE block_number = 14"
    )
    payload = _check("blocks", tamper(runner, ingested, "blocks", sql), sample_blocks=2)
    runner.run(payload)
    found = [(row["block_number"], row["problem"]) for row in rows(objects, payload, "findings")]
    assert found == [(12, "missing"), (14, "duplicates")]


def test_an_input_with_the_columns_of_another_table_is_refused(
    runner: SparkRunner, ingested: list[TaskPayload]
) -> None:
    with pytest.raises(BadTask, match="no column log_index of logs"):
        runner.run(_check("logs", as_input(*ingested, name="transactions")))


@pytest.mark.parametrize(
    ("span", "count", "wanted"),
    [
        ((0, 9), None, [(0, 9)]),
        ((0, 9), 10, [(0, 9)]),
        ((5, 105), 2, [(5, 5), (105, 105)]),
        ((0, 99), 1, [(0, 0)]),
    ],
)
def test_a_sample_is_spread_over_the_range(
    span: tuple[int, int], count: int | None, wanted: list[tuple[int, int]]
) -> None:
    assert sample_ranges(*span, count) == wanted


def test_a_large_sample_stays_in_the_range_without_overlaps() -> None:
    runs = sample_ranges(1000, 1999, 100)
    assert sum(end - start + 1 for start, end in runs) == 100
    assert runs[0][0] == 1000 and runs[-1][1] == 1999
    assert all(one[1] < other[0] for one, other in pairwise(runs))
