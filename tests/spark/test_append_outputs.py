"""`append` upserts rows on their key, so that a replay adds nothing."""

from collections.abc import Generator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from pyspark.sql import SparkSession

from support.services.postgres import Templates, copied
from support.spark.spark_tasks import task
from trace_etl.api.task.checks import TaskCheck
from trace_etl.api.task.payload import TaskInput, TaskOutput, TaskPayload
from trace_etl.data import migrations
from trace_etl.data.errors import StaleWriter
from trace_etl.model.storage import hot_table
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.errors import BadColumn, BadSql, BadTask, CheckFailed
from trace_etl.spark.io import hot_tables
from trace_etl.spark.io.column_names import quote_name
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.settings import SparkSettings

SCOPE = {"partition_key": "0-9", "start": 0, "end": 9}


@pytest.fixture(scope="module")
def dsn(templates: Templates) -> Generator[str]:
    with copied(templates) as dsns:
        migrations.apply(dsns.data)
        yield dsns.data


@pytest.fixture(scope="module")
def mine(runner: SparkRunner, dsn: str, tmp_path_factory: pytest.TempPathFactory) -> SparkRunner:
    place = tmp_path_factory.mktemp("append")
    made = SparkRunner(SparkSettings(FileStore(place), place, data_dsn=dsn))
    made.session = runner.session
    return made


@pytest.fixture
def output() -> TaskOutput:
    made = task("sql", {}, ["answer"]).outputs[0]
    return made.model_copy(update={"update_strategy": "append", "unique_key": ["who"]})


def _task(output: TaskOutput, values: str, **change: Any) -> TaskPayload:
    sql = f"SELECT * FROM VALUES {values} AS t(who, block_number, amount)"
    made = task("sql", {"sql": sql}, ["answer"], scope=SCOPE)
    return made.model_copy(update={"outputs": [output], **change})


def _table(dsn: str, output: TaskOutput) -> list[tuple[Any, ...]]:
    name = hot_table(output.dataset_uuid, output.dataset_version)
    with psycopg.connect(dsn) as conn:
        found = conn.execute(f'SELECT who, block_number, amount FROM "{name}" ORDER BY who')
        return found.fetchall()


def test_rows_are_upserted_and_a_replay_adds_nothing(
    mine: SparkRunner, dsn: str, output: TaskOutput
) -> None:
    first = _task(output, "('ann', 1, 1.5D), ('bob', 2, 2D), ('ann', 3, 9D)")
    result = mine.run(first)
    [reported], [event] = result.outputs, result.events
    assert (reported.row_count, result.datasets_published) == (2, [])
    assert (
        reported.location
        == f"postgres_table:{hot_table(output.dataset_uuid, output.dataset_version)}"
    )
    assert event.partition_key == "0-9"
    wanted = [("ann", 3, 9.0), ("bob", 2, 2.0)]  # of two rows with one key, the newest block wins
    assert _table(dsn, output) == wanted
    mine.run(first)
    mine.run(first.model_copy(update={"attempt": 2}))
    assert _table(dsn, output) == wanted
    mine.run(_task(output, "('bob', 7, 0D), ('cid', 8, 1D)"))
    assert _table(dsn, output) == [wanted[0], ("bob", 7, 0.0), ("cid", 8, 1.0)]


def test_checks_of_rows_for_a_table_run_before_one_of_them_is_written(
    mine: SparkRunner, dsn: str, output: TaskOutput
) -> None:
    rule = {
        "output": "answer",
        "name": "positive",
        "kind": "condition",
        "rule": {"sql": "amount > 0"},
    }
    mine.run(_task(output, "('ann', 1, 1D)"))
    bad = "('ann', 2, 7D), ('bob', 3, -1D)"
    blocking = _task(output, bad, checks=[TaskCheck.model_validate(rule)])
    with pytest.raises(
        CheckFailed, match=r"1 of 2 rows do not meet .amount > 0., for example who=bob"
    ):
        mine.run(blocking)
    assert _table(dsn, output) == [("ann", 1, 1.0)], "rows of a blocked attempt are visible"

    warning = TaskCheck.model_validate({**rule, "on_failure": "warn"})
    [result] = mine.run(_task(output, bad, checks=[warning])).checks
    assert (result.passed, result.failing_rows, result.checked_rows) == (False, 1, 2)
    assert (result.partition_key, result.dataset_version) == ("0-9", output.dataset_version)
    assert _table(dsn, output) == [("ann", 2, 7.0), ("bob", 3, -1.0)]


def test_a_late_attempt_writes_nothing(mine: SparkRunner, dsn: str, output: TaskOutput) -> None:
    payload = _task(output, "('ann', 1, 1D)")
    mine.run(payload.model_copy(update={"attempt": 2}))
    late = _task(output, "('ann', 1, 666D)", task_id=payload.task_id)
    with pytest.raises(StaleWriter):
        mine.run(late)
    assert _table(dsn, output) == [("ann", 1, 1.0)]


def test_an_appended_dataset_can_be_read_as_an_input(
    mine: SparkRunner, dsn: str, output: TaskOutput, spark: SparkSession
) -> None:
    mine.run(_task(output, "('ann', 1, 1D), ('bob', 20, 2D)"))
    given = TaskInput(
        input_index=0,
        name="answer",
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
    )
    found = hot_tables.load(spark.newSession(), given, None, dsn).frame.collect()
    assert sorted(row["who"] for row in found) == ["ann", "bob"]


ODD_NAMES = ("a.b", "c`d", 'q"r', "s't", "x y", "%s", "a\\b", "(n)", "ж" * 31 + "x")


def test_every_column_name_of_a_table_can_be_written_read_and_filtered(
    mine: SparkRunner, dsn: str, output: TaskOutput, spark: SparkSession
) -> None:
    columns = ", ".join(f"{n} AS {quote_name(name)}" for n, name in enumerate(ODD_NAMES))
    sql = f"SELECT 'ann' AS who, {columns}"
    made = task("sql", {"sql": sql}, ["answer"], scope=SCOPE)
    for _ in range(2):  # the second one updates every column of the row
        mine.run(made.model_copy(update={"outputs": [output], "task_id": uuid4()}))
    given = TaskInput(
        input_index=0,
        name="answer",
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
    )
    frame = hot_tables.load(spark.newSession(), given, None, dsn).frame
    (row,) = frame.collect()
    assert row.asDict() == {"who": "ann", **{name: n for n, name in enumerate(ODD_NAMES)}}
    matching = " AND ".join(f"{quote_name(name)} = {n}" for n, name in enumerate(ODD_NAMES))
    assert frame.where(matching).select("who").collect() == [("ann",)]
    assert frame.where(f"NOT ({matching})").count() == 0


def test_a_column_name_that_postgres_would_shorten_is_refused(
    mine: SparkRunner, output: TaskOutput
) -> None:
    sql = f"SELECT 'ann' AS who, 1 AS `{'ж' * 32}`"
    made = task("sql", {"sql": sql}, ["answer"], scope=SCOPE)
    with pytest.raises(BadColumn, match="the name has 64 bytes, but Postgres allows 63"):
        mine.run(made.model_copy(update={"outputs": [output]}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("('ann', 1, map('a', 1))", r"column amount is map<string,int>; append stores numbers"),
        ("('ann', 1, 'a\\u0000b')", "Postgres cannot store a value"),
        (
            "(CAST(NULL AS STRING), 1, 1D)",
            "a row has no value in column who, which is part of the unique_key",
        ),
    ],
    ids=["type", "NUL", "null"],
)
def test_rows_that_cannot_be_stored_are_refused_and_leave_no_staging_table(
    mine: SparkRunner, dsn: str, output: TaskOutput, values: str, message: str
) -> None:
    with pytest.raises(BadSql, match=message):
        mine.run(_task(output, values))
    with psycopg.connect(dsn) as conn:
        [[staging_tables]] = conn.execute(
            "SELECT count(*) FROM pg_tables WHERE tablename ~ '^staging_'"
        )
    assert staging_tables == 0


_EVERY_TYPE = """
SELECT 'ann' AS who, 1Y AS tiny, 2S AS small, 3 AS n, 4L AS block_number, 0.5F AS f, 0.25D AS d,
       12345.6789BD AS money, -CAST(7 AS DECIMAL(38, 18)) AS wei, true AS is_good, x'00ff' AS raw,
       DATE '1969-07-20' AS day, TIMESTAMP '2024-02-29 12:00:00.000001' AS at,
       TIMESTAMP_NTZ '1901-01-01 00:00:00' AS wall, array(1, NULL, 3) AS numbers,
       array('a', 'ü') AS words, array(1.5BD) AS prices, array(x'01', x'') AS raws,
       array(DATE '2000-01-01') AS days, array(3Y) AS tinies, CAST(array() AS ARRAY<DOUBLE>) AS no
 UNION ALL
SELECT 'bob', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL
"""


def test_every_common_type_survives_a_round_trip_through_postgres(
    mine: SparkRunner, dsn: str, output: TaskOutput, spark: SparkSession
) -> None:
    made = task("sql", {"sql": _EVERY_TYPE}, ["answer"], scope=SCOPE)
    assert mine.run(made.model_copy(update={"outputs": [output]})).outputs[0].row_count == 2
    given = TaskInput(
        input_index=0,
        name="answer",
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
    )
    session = spark.newSession()
    found = hot_tables.load(session, given, None, dsn).frame
    wanted = session.sql(_EVERY_TYPE)
    assert sorted(found.collect()) == sorted(wanted.collect())
    kinds = {field.name: field.dataType.simpleString() for field in found.schema}
    expected = {field.name: field.dataType.simpleString() for field in wanted.schema}
    assert kinds == {**expected, "tiny": "smallint", "tinies": "array<smallint>"}
    # Filters on these columns are pushed down or evaluated by Spark, with the same result.
    for condition in ("money > 12345.6BD", "day < DATE '1970-01-01'", "f = 0.5F", "n IN (3, 4)"):
        assert [row["who"] for row in found.where(condition).collect()] == ["ann"], condition


def test_a_unique_key_that_is_not_a_column_is_reported(
    mine: SparkRunner, output: TaskOutput
) -> None:
    wrong = output.model_copy(update={"unique_key": ["whom"]})
    with pytest.raises(BadSql, match="no column whom, which the unique_key names"):
        mine.run(_task(wrong, "('ann', 1, 1D)"))


def test_an_operator_that_cannot_append_is_refused(runner: SparkRunner, output: TaskOutput) -> None:
    payload = task("query", {"sql": "SELECT 1 AS who"}, ["answer"], scope=SCOPE)
    with pytest.raises(BadTask, match="update_strategy append"):
        runner.run(payload.model_copy(update={"outputs": [output], "task_id": uuid4()}))


def test_append_without_postgres_data_is_refused(
    runner: SparkRunner, output: TaskOutput, tmp_path: Path
) -> None:
    with pytest.raises(BadTask, match="append needs Postgres data"):
        runner.run(_task(output, "('ann', 1, 1D)"))


@pytest.mark.parametrize("name", ["_cursor", "_published"])
def test_a_column_reserved_for_buffered_tables_is_refused(
    mine: SparkRunner, output: TaskOutput, name: str
) -> None:
    made = task("sql", {"sql": f"SELECT 'ann' AS who, 1L AS {name}"}, ["answer"], scope=SCOPE)
    with pytest.raises(BadSql, match=f"the column name {name} is reserved"):
        mine.run(made.model_copy(update={"outputs": [output]}))
