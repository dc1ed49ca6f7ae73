"""Jobs over whole datasets: what is added to the previous result equals a full computation."""

import json
import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from support.spark.spark_tasks import as_input, directory, marker, output_of, rows, select, task
from trace_etl.api.task.payload import TaskPayload
from trace_etl.spark.increments import find_merge
from trace_etl.spark.runner import SparkRunner

SCHEMA = pa.schema(
    [
        ("token", pa.string()),
        ("holder", pa.binary()),
        ("n", pa.int64()),
        ("amount", pa.decimal128(20, 2)),
        ("weight", pa.float64()),
    ]
)
TYPES = ["string", "binary", "bigint", "decimal(20,2)", "double"]
SUMS = """
    SELECT token, holder AS who, count(*) AS rows, count(n) AS known, sum(n) AS total,
           sum(amount) AS amount, min(n) AS low, max(amount) AS high
      FROM (SELECT * FROM moves WHERE n IS NULL OR n % 7 <> 0) m
     GROUP BY token, holder
"""


def make_rows(seed: int, count: int = 40) -> list[dict[str, Any]]:
    choice = random.Random(seed)
    return [
        {
            "token": choice.choice(["a", "b", "c", None]),
            "holder": choice.choice([b"\x00", b"\xff", None]),
            "n": choice.choice([None, *range(-20, 20)]),
            "amount": Decimal(choice.randrange(-(10**9), 10**9)).scaleb(-2),
            "weight": choice.random(),
        }
        for _ in range(count)
    ]


def write_partition(objects: Path, number: int, values: list[dict[str, Any]]) -> TaskPayload:
    """Write a partition of the input like a task."""
    scope = {"partition_key": f"{number}-{number}", "start": number, "end": number}
    made = task("sql", {"sql": ""}, ["moves"], scope=scope)
    base = directory(objects, made, "moves")
    base.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(values, schema=SCHEMA), base / "moves.parquet")
    columns = [{"name": n, "type": t} for n, t in zip(SCHEMA.names, TYPES, strict=True)]
    file = {"name": "moves.parquet", "rows": len(values), "bytes": 1, "sha256": "0" * 64}
    (base / "_SUCCESS").write_text(
        json.dumps({"files": [file], "rows": len(values), "bytes": 1, "schema": columns})
    )
    return made


def refresh(
    sql: str, parts: Sequence[TaskPayload], previous: TaskPayload | None, **change: Any
) -> TaskPayload:
    made = select(sql, as_input(*parts, name="moves"), scope={"partition_key": "all"})
    old = None
    if previous is not None:
        ref = output_of(previous, "answer").storage_ref.model_dump()
        old = {"partition_key": "all", "storage_ref": ref}
    fields = {**made.model_dump(), "is_refresh": True, "previous": old, **change}
    return TaskPayload.model_validate(fields)


def run(runner: SparkRunner, payload: TaskPayload) -> TaskPayload:
    runner.run(payload)
    return payload


def ordered(found: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(row) for row in found)


def recompute(sql: str, inputs: Sequence[list[dict[str, Any]]]) -> list[str]:
    moves = pa.Table.from_pylist([row for part in inputs for row in part], schema=SCHEMA)
    with duckdb.connect() as engine:
        engine.register("moves", moves)
        names = [column[0] for column in engine.execute(sql).description or ()]
        found = [dict(zip(names, row, strict=True)) for row in engine.execute(sql).fetchall()]
    return ordered(found)


def select_over(spark: SparkSession, sql: str, table: Any) -> DataFrame:
    spark.createDataFrame(table).createOrReplaceTempView("moves")
    return spark.sql(sql)


def is_added_to(objects: Path, payload: TaskPayload) -> bool:
    return marker(objects, payload, "answer").get("made_from") is not None


def test_results_equal_a_full_recomputation_after_random_changes(
    runner: SparkRunner, objects: Path
) -> None:
    choice = random.Random(16)
    numbers = iter(range(1000))
    parts: dict[int, TaskPayload] = {}
    data: dict[int, list[dict[str, Any]]] = {}
    previous: TaskPayload | None = None
    for step in range(10):
        changes = choice.choice(["add", "add", "add", "replace", "remove", "nothing"])
        if changes == "add" or not parts:
            for _ in range(choice.randrange(1, 3)):
                number = next(numbers)
                data[number] = make_rows(number, choice.choice([0, 1, 40]))
                parts[number] = write_partition(objects, number, data[number])
        elif changes == "replace":  # a reorganisation
            number = choice.choice(list(parts))
            data[number] = make_rows(-step)
            parts[number] = write_partition(objects, number, data[number])
        elif changes == "remove" and len(parts) > 1:  # compaction
            number = choice.choice(list(parts))
            del parts[number], data[number]
        previous = run(runner, refresh(SUMS, list(parts.values()), previous))
        assert is_added_to(objects, previous)
        found = ordered(rows(objects, previous, "answer"))
        assert found == recompute(SUMS, list(data.values())), f"step {step}: {changes}"


def test_partitions_of_the_previous_result_are_not_read_again(
    runner: SparkRunner, objects: Path
) -> None:
    data = [make_rows(n) for n in range(3)]
    parts = [write_partition(objects, n, values) for n, values in enumerate(data)]
    first = run(runner, refresh(SUMS, parts[:2], None))
    for part in parts[:2]:
        (directory(objects, part, "moves") / "moves.parquet").unlink()
    second = run(runner, refresh(SUMS, parts, first))
    assert ordered(rows(objects, second, "answer")) == recompute(SUMS, data)
    # Without new partitions the rows stay as they are, but their columns come from a file.
    again = run(runner, refresh(SUMS, [parts[2], *parts[:2]], second))
    assert ordered(rows(objects, again, "answer")) == recompute(SUMS, data)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) AS n, min(token) AS low FROM moves",
        "SELECT token, count(*) AS n FROM moves GROUP BY ALL",
        "SELECT upper(token) AS t, max(n) AS n FROM moves WHERE n > 0 GROUP BY upper(token)",
        "SELECT token AS a, token AS b, sum(n) FILTER (WHERE n > 1) AS n FROM moves GROUP BY 1, 2",
        "SELECT DISTINCT_TOKEN, count(n) AS n FROM (SELECT token AS distinct_token, n FROM moves) GROUP BY 1",
    ],
)
def test_a_select_of_sums_and_extremes_can_be_added_to(spark: SparkSession, sql: str) -> None:
    parts = [pa.Table.from_pylist(make_rows(n), schema=SCHEMA) for n in (5, 6)]
    first, second, whole = (
        select_over(spark, sql, rows) for rows in (*parts, pa.concat_tables(parts))
    )
    merge = find_merge(second)
    assert merge is not None
    merged = merge.apply(first, second)
    assert merged.dtypes == whole.dtypes
    assert sorted(map(repr, merged.collect())) == sorted(map(repr, whole.collect()))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM moves",
        "SELECT token, avg(n) AS n FROM moves GROUP BY token",
        "SELECT token, sum(weight) AS w FROM moves GROUP BY token",
        "SELECT weight, count(*) AS n FROM moves GROUP BY weight",
        "SELECT token, count(DISTINCT n) AS n FROM moves GROUP BY token",
        "SELECT token, try_sum(n) AS n FROM moves GROUP BY token",
        "SELECT token, count(*) AS n FROM moves GROUP BY token HAVING count(*) > 3",
        "SELECT token, count(*) AS n FROM moves GROUP BY token ORDER BY n",
        "SELECT token, count(*) AS n FROM moves GROUP BY token LIMIT 2",
        "SELECT count(*) AS n FROM moves GROUP BY token",
        "SELECT lower(token) AS token, count(*) AS n FROM moves GROUP BY moves.token",
        "SELECT token, count(*) AS n FROM moves GROUP BY token, holder",
        "SELECT token, holder, count(*) AS n FROM moves GROUP BY ROLLUP (token, holder)",
        "SELECT token, count(*) + 1 AS n FROM moves GROUP BY token",
        "SELECT token, count(*) AS n FROM (SELECT DISTINCT token FROM moves) GROUP BY token",
        "SELECT token, count(*) AS n FROM (SELECT token FROM moves LIMIT 5) GROUP BY token",
        "SELECT token, count(*) AS n FROM (SELECT token, rank() OVER (ORDER BY n) AS r FROM moves) "
        "WHERE r < 9 GROUP BY token",
        "SELECT token, count(*) AS n FROM moves WHERE n > (SELECT avg(n) FROM moves) GROUP BY token",
        "SELECT token, count(*) AS n FROM moves WHERE current_timestamp() > timestamp'2020-01-01' "
        "GROUP BY token",
        "SELECT token, count(*) AS n, current_date() AS d FROM moves GROUP BY token",
        "SELECT token, count(*) AS n FROM moves WHERE rand() > 0.5 GROUP BY token",
        "SELECT m.token, count(*) AS n FROM moves m JOIN moves o ON m.n = o.n GROUP BY m.token",
        "SELECT token, count(*) AS n FROM (SELECT * FROM moves UNION ALL SELECT * FROM moves) GROUP BY 1",
        "SELECT token, count(*) AS n FROM (SELECT token, explode(array(1, 2)) FROM moves) GROUP BY token",
        "SELECT token, max_by(holder, n) AS h FROM moves GROUP BY token",
    ],
)
def test_any_other_select_is_computed_whole(spark: SparkSession, sql: str) -> None:
    assert find_merge(select_over(spark, sql, SCHEMA.empty_table())) is None


@pytest.mark.parametrize(
    "change",
    [{"is_refresh": False}, {"partition_by": "day", "scope": {"partition_key": "2026-01-01"}}],
)
def test_only_refreshes_of_whole_datasets_are_added_to(
    runner: SparkRunner, objects: Path, change: dict[str, Any]
) -> None:
    part = write_partition(objects, 0, make_rows(8))
    made = run(runner, refresh(SUMS, [part], None, **change))
    assert not is_added_to(objects, made)


def test_parameters_make_a_result_that_is_computed_whole(
    runner: SparkRunner, objects: Path
) -> None:
    part = write_partition(objects, 0, make_rows(9))
    sql = "SELECT :partition_key AS k, count(*) AS n FROM moves GROUP BY ALL"
    assert not is_added_to(objects, run(runner, refresh(sql, [part], None)))
