"""A SELECT over inputs: what it can read, what it cannot do, and what it writes."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from support.chain.chain_rows import expected
from support.spark.spark_tasks import (
    as_input,
    directory,
    ingest,
    marker,
    range_scope,
    rows,
    select,
    task,
)
from trace_etl.api.task.payload import Scope, TaskInput, TaskParameters, TaskPayload
from trace_etl.devtools.devchain import DevChain
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.analysis import struct_of_columns
from trace_etl.spark.errors import BadColumn, BadSql, BadTask, OperatorError
from trace_etl.spark.io import inputs
from trace_etl.spark.io.scan import Scan
from trace_etl.spark.operators import sql as sql_operator
from trace_etl.spark.runner import SparkRunner


@pytest.fixture(scope="module")
def ingested(runner: SparkRunner) -> list[TaskPayload]:
    """Blocks 0 to 39 in two partitions."""
    done = [ingest(0, 19), ingest(20, 39)]
    for payload in done:
        runner.run(payload)
    return done


def _answer(runner: SparkRunner, objects: Path, payload: TaskPayload) -> list[dict[str, Any]]:
    runner.run(payload)
    return rows(objects, payload, "answer")


def test_a_select_reads_all_partitions_of_its_inputs(
    runner: SparkRunner, objects: Path, chain: DevChain, ingested: list[TaskPayload]
) -> None:
    sql = """
        SELECT t.block_number, count(l.log_index) AS logs
          FROM transactions t LEFT JOIN logs l USING (transaction_hash)
         GROUP BY t.block_number
    """
    payload = select(
        sql, as_input(*ingested, name="transactions"), as_input(*ingested, name="logs")
    )
    full = expected(chain, 0, 39)
    busy = sorted({row["block_number"] for row in full["transactions"]})
    blocks_of_logs = [row["block_number"] for row in full["logs"]]
    assert _answer(runner, objects, payload) == [
        {"block_number": number, "logs": blocks_of_logs.count(number)} for number in busy
    ]


def test_an_input_is_limited_to_the_scope(
    runner: SparkRunner, objects: Path, chain: DevChain, ingested: list[TaskPayload]
) -> None:
    payload = select(
        "SELECT * FROM logs", as_input(*ingested, name="logs"), scope=range_scope(15, 24)
    )
    assert _answer(runner, objects, payload) == expected(chain, 15, 24)["logs"]
    assert marker(objects, payload, "answer")["files"][0]["name"] == "answer_15_24.parquet"


JOINED = {"address", "topic0", "n_data_bytes"}
SUMMED = {"log_index", "block_number"}
NEEDED: dict[str, tuple[set[str] | None, set[str] | None]] = {
    "SELECT count(*) AS n FROM logs": (set(), set()),
    "SELECT data FROM logs WHERE LOG_INDEX > 1": ({"data", "log_index"}, {"data", "log_index"}),
    "SELECT address AS data FROM logs": ({"address"}, {"address", "data"}),
    "SELECT address FROM logs UNION ALL SELECT topic0 FROM logs": (
        *({"address", "topic0"}, {"address", "topic0"}),
    ),
    "SELECT a.address FROM logs a JOIN logs b ON a.topic0 = b.topic0 WHERE b.n_data_bytes > 0": (
        *(JOINED, JOINED),
    ),
    "WITH l AS (SELECT * FROM logs) SELECT sum(log_index) AS n FROM l"
    " WHERE block_number = (SELECT max(block_number) FROM l)": (SUMMED, None),
    "WITH l AS (SELECT log_index, block_number AS b FROM logs) SELECT sum(log_index) AS n FROM l"
    " WHERE b = (SELECT max(b) FROM l)": (SUMMED, SUMMED),
    "SELECT a.address FROM logs a NATURAL JOIN (SELECT topic0 FROM logs) b": (
        *({"address", "topic0"}, None),
    ),
    "SELECT struct(*) AS l FROM logs": (None, None),
    "FROM logs |> WHERE log_index > 1": (None, None),
}
"""The columns of its input that a SELECT is known to need: from its plan, and from its names. None: all."""


def test_workers_read_only_the_columns_that_a_select_needs(
    runner: SparkRunner,
    objects: Path,
    ingested: list[TaskPayload],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store is one that Spark's JVM cannot read, such as S3."""

    class Remote(FileStore):
        def jvm_path(self, key: str) -> str | None:
            return None

    scans: list[Scan] = []
    read = inputs.read_objects

    def note_and_read(spark: SparkSession, schema: StructType, scan: Scan) -> DataFrame:
        scans.append(scan)
        return read(spark, schema, scan)

    own = SparkRunner(replace(runner.settings, objects=Remote(objects)))
    own.session = runner.session
    monkeypatch.setattr(inputs, "read_objects", note_and_read)
    monkeypatch.setattr(inputs, "SMALL_BYTES", 0)
    for sql, (by_plan, by_name) in NEEDED.items():
        given = as_input(*ingested, name="logs")
        wanted = sorted(map(repr, _answer(runner, objects, select(sql, given))))
        assert wanted and not scans, f"{sql}: no rows, or not read by the JVM"
        for columns, shows_plans in ((by_plan, True), (by_name, False)):
            with monkeypatch.context() as session:
                if not shows_plans:  # as on Spark Connect
                    session.setattr(sql_operator, "find_needed_columns", lambda frame: {})
                assert sorted(map(repr, _answer(own, objects, select(sql, given)))) == wanted, sql
            narrowed = [] if columns is None else [columns]
            assert [scan.columns for scan in scans] == [None, *narrowed], sql
            scans.clear()


def test_a_scope_beyond_every_partition_gives_no_rows_and_the_same_columns(
    runner: SparkRunner, objects: Path, ingested: list[TaskPayload]
) -> None:
    near, far = (
        select("SELECT * FROM logs", as_input(*ingested, name="logs"), scope=range_scope(*span))
        for span in ((0, 9), (1000, 1009))
    )
    assert _answer(runner, objects, near) and _answer(runner, objects, far) == []
    one, other = (marker(objects, payload, "answer")["schema"] for payload in (near, far))
    assert one == other


def test_a_where_filters_by_equality_and_by_list(
    runner: SparkRunner, objects: Path, chain: DevChain, ingested: list[TaskPayload]
) -> None:
    logs = expected(chain, 0, 39)["logs"]
    address = logs[0]["address"]
    where = {"address": f"0x{address.hex()}", "transaction_index": [0, 2]}
    payload = select("SELECT * FROM logs", as_input(*ingested, name="logs", where=where))
    wanted = [
        row for row in logs if row["address"] == address and row["transaction_index"] in (0, 2)
    ]
    assert wanted and len(wanted) < len(logs)
    assert _answer(runner, objects, payload) == wanted


def test_scope_and_where_are_pushed_down_to_the_files(
    spark: SparkSession, objects: Path, ingested: list[TaskPayload]
) -> None:
    given = as_input(*ingested, name="logs", where={"transaction_index": [1, 2]})
    scope = Scope.model_validate(range_scope(5, 9))
    session = spark.newSession()
    session.conf.set("spark.sql.maxMetadataStringLength", 10_000)
    frame = inputs.load(session, TaskInput.model_validate(given), scope, FileStore(objects)).frame
    plan: str = frame._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    pushed = plan.partition("PushedFilters: [")[2]
    assert "GreaterThanOrEqual(block_number,5)" in pushed
    assert "LessThanOrEqual(block_number,9)" in pushed
    assert "In(transaction_index, [1,2])" in pushed
    assert "logs_20_39" not in str(frame.inputFiles())  # this file is not opened


def test_a_where_on_an_unknown_column_is_refused(
    runner: SparkRunner, ingested: list[TaskPayload]
) -> None:
    given = as_input(*ingested, name="logs", where={"colour": "red"})
    with pytest.raises(BadTask, match="input logs, where: there is no column colour"):
        runner.run(select("SELECT * FROM logs", given))


def test_order_by_of_the_user_is_preserved(
    runner: SparkRunner, objects: Path, ingested: list[TaskPayload]
) -> None:
    sql = """
        WITH counted AS (SELECT block_number, count(*) AS n FROM logs GROUP BY block_number)
        SELECT * FROM counted ORDER BY n DESC, block_number LIMIT 5
    """
    found = _answer(runner, objects, select(sql, as_input(*ingested, name="logs")))
    keys = [(-row["n"], row["block_number"]) for row in found]
    assert len(keys) == 5 and keys == sorted(keys)


def test_order_by_of_the_user_is_preserved_over_many_partitions(
    runner: SparkRunner,
    objects: Path,
    ingested: list[TaskPayload],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inputs, "SMALL_BYTES", 0)
    sql = "SELECT block_number, sha2(data, 256) AS digest FROM logs ORDER BY digest DESC, log_index"
    found = _answer(runner, objects, select(sql, as_input(*ingested, name="logs")))
    digests = [row["digest"] for row in found]
    assert len(digests) > 200 and digests == sorted(digests, reverse=True)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT block_number, count(*) AS n FROM logs WHERE block_number < 0 GROUP BY block_number",
        "SELECT * FROM logs WHERE false",
        "SELECT * FROM logs LIMIT 0",
    ],
)
def test_a_select_without_rows_writes_a_file_with_the_right_columns(
    runner: SparkRunner, objects: Path, ingested: list[TaskPayload], sql: str
) -> None:
    payload = select(sql, as_input(*ingested, name="logs"), scope=range_scope(0, 39))
    assert _answer(runner, objects, payload) == []
    written = marker(objects, payload, "answer")
    assert written["rows"] == 0 and written["files"][0]["name"] == "answer_0_39.parquet"
    assert written["schema"][0] == {"name": "block_number", "type": "bigint"}


def test_the_result_of_one_select_is_an_input_of_the_next(
    runner: SparkRunner, objects: Path, ingested: list[TaskPayload]
) -> None:
    types = """
        SELECT CAST(1 AS int) AS i, 'a' AS s, 1.5D AS d, CAST(2.25 AS decimal(20,2)) AS m,
               TIMESTAMP'2024-01-02 03:04:05' AS t, DATE'2024-01-02' AS day, true AS b,
               array(1, 2) AS many, named_struct('x', 1L, 'y', 'z') AS pair,
               CAST(NULL AS string) AS none
    """
    first = select(types, scope=range_scope(0, 9))
    runner.run(first)
    second = select("SELECT * FROM answer", as_input(first, name="answer"))
    assert _answer(runner, objects, second) == rows(objects, first, "answer")
    assert marker(objects, second, "answer")["schema"] == marker(objects, first, "answer")["schema"]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO logs SELECT * FROM logs",
        "CREATE TABLE t AS SELECT 1",
        "DROP VIEW logs",
        "SET spark.sql.runSQLOnFiles = true",
        "SELECT 1; SELECT 2",
        "EXPLAIN SELECT 1",
        "EXECUTE IMMEDIATE 'SELECT 1'",
        "BEGIN SELECT 1; END",
        "ADD JAR '/tmp/x.jar'",
        "SELECT TRANSFORM(address) USING 'cat' AS (x) FROM logs",
        "SELECT * FROM (SELECT TRANSFORM(1) USING 'id' AS (x))",
        "SELECT a FROM (SELECT TRANSFORM(1) USING 'id' AS (a)) WHERE '\n== x' <> a",
        "SELECT a FROM (MAP 1 USING /* ' */ 'id' AS (a))",
        "SELECT (SELECT max(a) FROM (REDUCE 1 USING 'id' AS (a))) AS b FROM logs",
        "WITH t AS (SELECT TRANSFORM(1) USING 'id' AS (a)) SELECT /*+ BROADCAST(t) */ * FROM t",
        "SELECT * FROM logs JOIN LATERAL (SELECT TRANSFORM(1) USING 'id' AS (a))",
        "SELECT * FROM VALUES ((SELECT a FROM (SELECT TRANSFORM(1) USING 'id' AS (a)))) AS t(x)",
        "SELEC 1",
        "",
    ],
)
def test_anything_but_one_select_is_refused_permanently(
    runner: SparkRunner, objects: Path, ingested: list[TaskPayload], sql: str
) -> None:
    payload = select(sql or " ", as_input(*ingested, name="logs"))
    with pytest.raises(BadSql, match="not one SELECT") as caught:
        runner.run(payload)
    assert not caught.value.retryable
    assert not directory(objects, payload, "answer").exists()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT reflect('java.lang.System', 'getProperty', 'java.home')",
        "SELECT IDENTIFIER('java_' || 'method')('java.lang.System', 'getProperty', 'user.name')",
        "SELECT '\n== x' AS a, try_reflect('java.lang.System', 'getProperty', 'user.home') AS b",
        "SELECT builtin.`reflect` /* ( */ ('java.lang.System', 'getProperty', 'user.home')",
        "SELECT from_xml('<a/>', 'a int', map('rowValidationXSDPath', '/etc/passwd')) AS a",
        "SELECT * FROM text.`/etc/passwd`",
        "SELECT * FROM parquet.`/tmp`",
        "SELECT * FROM blocks",
        "SELECT colour FROM logs",
    ],
)
def test_a_select_can_read_only_its_inputs(
    runner: SparkRunner, ingested: list[TaskPayload], sql: str
) -> None:
    with pytest.raises(BadSql, match=r"inputs: logs|not allowed in a SELECT"):
        runner.run(select(sql, as_input(*ingested, name="logs")))


@pytest.mark.parametrize("is_fresh", [False, True], ids=["main_thread", "fresh_thread"])
def test_variables_in_the_sql_text_are_not_substituted(
    runner: SparkRunner, objects: Path, is_fresh: bool
) -> None:
    payload = select("SELECT '${env:HOME}' AS a, '${system:java.home}' AS b;")
    with ThreadPoolExecutor(1) as fresh:
        fresh.submit(runner.run, payload).result() if is_fresh else runner.run(payload)
    wanted = [{"a": "${env:HOME}", "b": "${system:java.home}"}]
    assert rows(objects, payload, "answer") == wanted


def test_a_new_thread_cannot_read_files_by_path(runner: SparkRunner) -> None:
    with ThreadPoolExecutor(1) as fresh, pytest.raises(BadSql, match="inputs: none"):
        fresh.submit(runner.run, select("SELECT * FROM text.`/etc/passwd`")).result()


def test_a_select_that_fails_on_its_rows_fails_permanently(runner: SparkRunner) -> None:
    with pytest.raises(BadSql, match="DIVIDE_BY_ZERO"):
        runner.run(select("SELECT 1 / (id - 3) FROM range(10)"))


def test_a_select_that_needs_too_much_memory_fails_only_its_own_task(
    runner: SparkRunner, objects: Path, ingested: list[TaskPayload]
) -> None:
    block = as_input(*ingested, name="blocks")
    greedy = "SELECT size(sequence(1, 2000000000 + block_number)) AS n FROM blocks"
    with pytest.raises(OperatorError):
        runner.run(select(greedy, block))
    assert len(_answer(runner, objects, select("SELECT block_number FROM blocks", block))) == 40


def test_a_select_that_is_nested_too_deeply_is_refused_before_spark_parses_it(
    runner: SparkRunner,
) -> None:
    deep = f"SELECT {'(' * 400}1{')' * 400} AS n"
    with pytest.raises(BadSql, match="nested too deeply: 400 parentheses"):
        runner.run(select(deep))


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT NULL AS nothing", "column nothing has type void"),
        ("SELECT array(struct(NULL AS x)) AS deep", "column deep"),
        ("SELECT INTERVAL 1 DAY AS span", "column span has type interval day"),
        ("SELECT 1 AS one, 2 AS ONE", "two columns are called ONE"),
    ],
)
def test_a_column_that_cannot_be_stored_is_reported(
    runner: SparkRunner, sql: str, message: str
) -> None:
    with pytest.raises(BadSql, match=message):
        runner.run(select(sql))


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (r"SELECT 'a\0b'", r"column 1 \('a\\x00b'\): the name has a control character; give it"),
        ("SELECT 1 AS `a\tb`", "has a control character"),
        ("SELECT 1 AS x, ''", "column 2 .*the name is empty; give it an alias"),
        (f"SELECT 1 AS {'x' * 256}", "more than 255 characters"),
        (r"SELECT named_struct('a\0b', 1) AS x", "has a control character"),
        ("SELECT array(struct(1 AS `\n`)) AS x", "has a control character"),
    ],
)
def test_a_column_name_that_cannot_be_stored_is_refused_permanently(
    runner: SparkRunner, sql: str, message: str
) -> None:
    with pytest.raises(BadColumn, match=message) as caught:
        runner.run(select(sql))
    assert not caught.value.retryable


def test_dots_and_backticks_in_column_names_work_in_the_next_task(
    runner: SparkRunner, objects: Path
) -> None:
    odd = {"a.b": 1, "c`d": 2, 'e"f': 3, "g h": 4, "ключ": 5}
    columns = ", ".join(f"{n} AS `{name.replace('`', '``')}`" for name, n in odd.items())
    first = select(f"SELECT {columns}", scope=range_scope(0, 9))
    runner.run(first)
    given = as_input(first, name="answer", where={"c`d": 2, "a.b": [1]})
    second = select("SELECT *, `a.b` + `c``d` AS sum FROM answer", given)
    assert _answer(runner, objects, second) == [{**odd, "sum": 3}]
    described = marker(objects, second, "answer")["schema"]
    assert struct_of_columns(described).names == [*odd, "sum"]
    third = task(
        "query", {"sql": "SELECT * FROM answer", "format": "json"}, ["answer"], inputs=[given]
    )
    runner.run(third)
    [file] = directory(objects, third, "answer").glob("*.json")
    assert json.loads(file.read_text()) == odd


@pytest.mark.parametrize("name", ["SparkLost", "ExecutorFailure"])
def test_an_error_text_of_a_select_is_not_mistaken_for_an_error_of_trace(
    runner: SparkRunner, name: str
) -> None:
    before = runner.session.get()
    reported = {"module": "trace_etl.spark.errors", "name": "SparkLost", "detail": "y"}
    line = f"trace_etl.spark.errors.{name}: {json.dumps(reported) if name[0] == 'E' else 'y'}"
    with pytest.raises(BadSql, match="USER_RAISED_EXCEPTION"):
        runner.run(select(f"SELECT CAST(raise_error('x\n{line}\nz') AS INT) AS x FROM range(3)"))
    assert runner.session.get() is before


def test_views_of_one_task_are_not_visible_to_the_next(
    runner: SparkRunner, ingested: list[TaskPayload]
) -> None:
    runner.run(select("SELECT 1 AS x FROM logs", as_input(*ingested, name="logs")))
    with pytest.raises(BadSql, match="inputs: none"):
        runner.run(select("SELECT 1 AS x FROM logs"))


def test_large_and_small_inputs_give_the_same_result(
    runner: SparkRunner,
    objects: Path,
    ingested: list[TaskPayload],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sql = "SELECT block_number, log_index, upper(hex(address)) AS who FROM logs"
    small, large = (select(sql, as_input(*ingested, name="logs")) for _ in range(2))
    wanted = _answer(runner, objects, small)
    monkeypatch.setattr(inputs, "SMALL_BYTES", 0)
    assert _answer(runner, objects, large) == wanted


# --- parameters -----------------------------------------------------------------------------------


def test_parameters_are_bound_and_not_part_of_the_text(
    runner: SparkRunner, objects: Path, ingested: list[TaskPayload]
) -> None:
    sql = (
        "SELECT :scheduled_time AS at, get_json_object(:payload, '$.name') AS name,"
        " :partition_key AS key, count(*) AS n FROM blocks"
    )
    hostile = "x' UNION ALL SELECT 1 -- ${env:HOME} :scheduled_time"
    values = TaskParameters(
        scheduled_time=datetime(2026, 11, 18, 4, tzinfo=UTC), payload={"name": hostile}
    )
    payload = select(sql, as_input(*ingested, name="blocks"))
    payload = payload.model_copy(update={"parameters": values})
    key = payload.scope.output_key if payload.scope else None
    (row,) = _answer(runner, objects, payload)
    assert (row["name"], row["key"]) == (hostile, key)
    assert row["at"] == datetime(2026, 11, 18, 4, tzinfo=UTC)
    plain = select(sql, as_input(*ingested, name="blocks"))
    (empty,) = _answer(runner, objects, plain)
    assert (empty["at"], empty["name"], empty["n"]) == (None, None, row["n"])


@pytest.mark.parametrize("sql", ["SELECT :other AS n", "SELECT ? AS n", "SELECT 1 AS n LIMIT :n"])
def test_other_parameters_are_refused(runner: SparkRunner, sql: str) -> None:
    with pytest.raises(BadSql):
        runner.run(select(sql))


def test_a_tick_without_data_ends_without_rows(runner: SparkRunner) -> None:
    ids = {"dataset_uuid": str(uuid4()), "dataset_version": str(uuid4())}
    empty = {"input_index": 0, "name": "blocks", **ids, "partitions": []}
    payload = select("SELECT count(*) AS n FROM blocks", empty)
    with pytest.raises(OperatorError, match="no partition is committed yet"):
        runner.run(payload)
    tick = TaskParameters(scheduled_time=datetime(2026, 11, 18, tzinfo=UTC))
    assert runner.run(payload.model_copy(update={"parameters": tick})).outputs == []
    assert runner.run(payload.model_copy(update={"is_refresh": True})).outputs == []
