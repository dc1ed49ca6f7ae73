"""Operators over tables: enrich, query, compact."""

import csv
import io
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

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
from trace_etl.api.task.payload import TaskPayload
from trace_etl.devtools.devchain import DevChain
from trace_etl.objects.file_store import FileStore
from trace_etl.objects.markers import verify_output
from trace_etl.objects.opening import open_store
from trace_etl.policy.commit.kept_rows import RowSet, keeps_all_rows
from trace_etl.query.pins import Pin, PinnedFiles
from trace_etl.query.requests import QueryLimits
from trace_etl.query.sql.engine import open_engine, prepare_engine
from trace_etl.query.sql.tables import ReadBudget
from trace_etl.spark.errors import BadTask, NotFinal
from trace_etl.spark.runner import SparkRunner

SCOPE = range_scope(0, 29)


@pytest.fixture(scope="module")
def ingested(runner: SparkRunner) -> list[TaskPayload]:
    payloads = [ingest(a, a + 9, outputs=["blocks", "logs"]) for a in (0, 10, 20)]
    for payload in payloads:
        runner.run(payload)
    return payloads


def make_dataset(runner: SparkRunner, sql: str, name: str) -> dict[str, Any]:
    """Create a small dataset with one partition, as an input."""
    payload = task("sql", {"sql": sql}, [name], scope={"partition_key": "all"})
    runner.run(payload)
    return as_input(payload, name=name)


def _enrich(base: dict[str, Any], known: dict[str, Any] | None, **config: Any) -> TaskPayload:
    given = [base, known] if known else [base]
    return task("enrich", config, ["answer"], scope={"partition_key": "all"}, inputs=given)


@pytest.fixture(scope="module")
def base(runner: SparkRunner) -> dict[str, Any]:
    values = "VALUES (1, X'aa'), (2, X'bb'), (3, CAST(NULL AS BINARY))"
    return make_dataset(runner, f"SELECT * FROM {values} AS t(id, who)", "base")


@pytest.fixture(scope="module")
def known(runner: SparkRunner) -> dict[str, Any]:
    values = "VALUES (X'aa', 'zoe', 1), (X'aa', 'ann', 9), (X'cc', 'bob', 2), (NULL, 'nobody', 3)"
    return make_dataset(runner, f"SELECT * FROM {values} AS t(address, name, rank)", "known")


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, [(1, "ann", 9), (2, None, None), (3, None, None)]),
        ({"how": "inner"}, [(1, "ann", 9)]),
        (
            {"matches": "all"},
            [(1, "ann", 9), (1, "zoe", 1), (2, None, None), (3, None, None)],
        ),
    ],
    ids=["left", "inner", "all"],
)
def test_rows_are_looked_up_in_another_dataset(
    runner: SparkRunner,
    objects: Path,
    base: dict[str, Any],
    known: dict[str, Any],
    config: dict[str, Any],
    wanted: list[tuple[Any, ...]],
) -> None:
    payload = _enrich(base, known, on={"who": "address"}, **config)
    runner.run(payload)
    found = [(row["id"], row["name"], row["rank"]) for row in rows(objects, payload, "answer")]
    assert sorted(found, key=str) == sorted(wanted, key=str)


def test_only_the_selected_columns_are_added_with_their_prefix(
    runner: SparkRunner, objects: Path, base: dict[str, Any], known: dict[str, Any]
) -> None:
    payload = _enrich(base, known, on={"who": "address"}, columns=["name"], prefix="who_")
    runner.run(payload)
    assert set(rows(objects, payload, "answer")[0]) == {"id", "who", "who_name"}


def test_labels_can_be_given_in_the_config(
    runner: SparkRunner, objects: Path, base: dict[str, Any]
) -> None:
    payload = _enrich(base, None, on={"who": "value"}, labels={"0xBB": "bee", "0xdd": "dee"})
    runner.run(payload)
    found = {row["id"]: row["label"] for row in rows(objects, payload, "answer")}
    assert found == {1: None, 2: "bee", 3: None}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"on": {"whom": "address"}}, "the first input has no column whom"),
        ({"on": {"who": "adress"}}, "the lookup input has no column adress"),
        ({"on": {"who": "address"}, "labels": {"0xaa": "a"}}, "needs 1 input, not 2"),
    ],
)
def test_an_invalid_enrichment_is_refused_with_a_reason(
    runner: SparkRunner,
    base: dict[str, Any],
    known: dict[str, Any],
    config: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(BadTask, match=message):
        runner.run(_enrich(base, known, **config))


QUERY = """
SELECT id, X'0aFF' AS b, named_struct('k', X'01', 'n', array(1, 2)) AS s,
       CAST(NULL AS STRING) AS nothing, 'a,"b\n"' AS t
  FROM range(3) ORDER BY id DESC
"""


def _query(sql: str, form: str) -> TaskPayload:
    return task("query", {"sql": sql, "format": form}, ["answer"], scope={"partition_key": "all"})


def test_a_query_gives_json_lines(runner: SparkRunner, objects: Path) -> None:
    payload = _query(QUERY, "json")
    runner.run(payload)
    text = (directory(objects, payload, "answer") / "answer_all.json").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    assert [row["id"] for row in found] == [2, 1, 0]
    assert found[0] == {
        "id": 2,
        "b": "0x0aff",
        "s": {"k": "0x01", "n": [1, 2]},
        "nothing": None,
        "t": 'a,"b\n"',
    }
    assert verified_rows(objects, payload) == 3


def verified_rows(objects: Path, payload: TaskPayload) -> int:
    """Verify the output as the Dispatcher does. Returns the rows of its marker."""
    storage = payload.outputs[0].storage_ref.ref()
    ref = replace(storage, glob=f"*.{payload.config['format']}")
    return verify_output(open_store(objects.as_uri()), ref).rows


def test_a_query_gives_csv(runner: SparkRunner, objects: Path) -> None:
    payload = _query(QUERY, "csv")
    runner.run(payload)
    text = (directory(objects, payload, "answer") / "answer_all.csv").read_text()
    found = list(csv.DictReader(io.StringIO(text)))
    assert [row["id"] for row in found] == ["2", "1", "0"]
    assert (found[0]["b"], found[0]["t"], found[0]["nothing"]) == ("0x0aff", 'a,"b\n"', "")
    assert verified_rows(objects, payload) == 3
    assert json.loads(found[0]["s"]) == {"k": "0x01", "n": [1, 2]}


@pytest.mark.parametrize("form", ["csv", "json"])
def test_the_query_service_reads_what_a_query_writes_as_text(
    runner: SparkRunner, objects: Path, form: str
) -> None:
    payload = _query(QUERY, form)
    runner.run(payload)
    pin = Pin("answer", uuid4(), (payload.outputs[0].storage_ref.ref(),), [])
    view = PinnedFiles(FileStore(objects)).make_view(pin, timedelta(minutes=1))
    with open_engine(QueryLimits(rows=None, memory="200MB", threads=1)) as engine:
        prepare_engine(engine, [view], None, ReadBudget(0))
        found = engine.execute("SELECT * FROM answer").fetchall()
        names = [column[0] for column in engine.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in found]
    if form == "json":
        rows = [json.loads(row["line"]) for row in rows]
    assert [row["id"] for row in rows] == [2, 1, 0]
    assert (rows[0]["b"], rows[0]["t"], rows[0]["nothing"]) == ("0x0aff", 'a,"b\n"', None)


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_a_query_without_rows_writes_an_empty_result(
    runner: SparkRunner, objects: Path, form: str
) -> None:
    payload = _query("SELECT 1 AS one WHERE false", form)
    runner.run(payload)
    [file] = marker(objects, payload, "answer")["files"]
    assert (file["name"], file["rows"]) == (f"answer_all.{form}", 0)
    assert verified_rows(objects, payload) == 0


def _compact(scope: dict[str, Any], given: dict[str, Any], **config: Any) -> TaskPayload:
    return task("parquet_compact", config, ["answer"], scope=scope, inputs=[given])


def test_small_files_are_compacted_into_one_with_the_rows_in_order(
    runner: SparkRunner, objects: Path, chain: DevChain, ingested: list[TaskPayload]
) -> None:
    payload = _compact(range_scope(5, 24), as_input(*reversed(ingested), name="logs"))
    runner.run(payload)
    assert rows(objects, payload, "answer") == expected(chain, 5, 24)["logs"]
    [file] = marker(objects, payload, "answer")["files"]
    assert file["name"] == "answer_5_24.parquet"
    group = pq.ParquetFile(directory(objects, payload, "answer") / file["name"]).metadata.row_group(
        0
    )
    encodings = {group.column(i).path_in_schema: group.column(i).encodings for i in range(12)}
    assert "RLE_DICTIONARY" in encodings["address"]  # contracts repeat


@pytest.fixture(scope="module")
def mixed(runner: SparkRunner) -> list[TaskPayload]:
    """Partitions of one dataset, of which the middle one is of before the columns were changed."""
    made = [
        task(
            "cryo_ingest",
            {"columns": columns},
            ["transactions"],
            scope=range_scope(start, start + 9),
        )
        for start, columns in ((0, "full"), (10, "minimal"), (20, "full"))
    ]
    for payload in made:
        runner.run(payload)
    return made


def test_jobs_read_nulls_where_older_partitions_lack_a_column(
    runner: SparkRunner, objects: Path, chain: DevChain, mixed: list[TaskPayload]
) -> None:
    given = as_input(*mixed, name="transactions")
    wanted = [
        (row["transaction_hash"], None if 10 <= row["block_number"] < 20 else row["nonce"])
        for row in expected(chain, 5, 24)["transactions"]
    ]
    assert len({nonce is None for _, nonce in wanted}) == 2
    scope = range_scope(5, 24)
    query = "SELECT block_number, transaction_index, transaction_hash, nonce, s FROM transactions"
    for payload in (select(query, given, scope=scope), _compact(scope, given)):
        runner.run(payload)
        found = sorted(
            rows(objects, payload, "answer"),
            key=lambda row: (row["block_number"], row["transaction_index"]),
        )
        assert [(row["transaction_hash"], row["nonce"]) for row in found] == wanted
        assert {row["s"] is None for row in found if 10 <= row["block_number"] < 20} == {True}
        assert {row["s"] is None for row in found if row["block_number"] >= 20} == {False}
    only = select(f"{query} WHERE nonce IS NULL", given, scope=scope)
    runner.run(only)
    assert {row["block_number"] for row in rows(objects, only, "answer")} == {*range(10, 20)}


def test_a_compaction_proves_the_rows_of_partitions_with_fewer_columns(
    runner: SparkRunner, objects: Path, mixed: list[TaskPayload]
) -> None:
    payload = _compact(SCOPE, as_input(*mixed, name="transactions"))
    runner.run(payload)
    made = marker(objects, payload, "answer")
    parts = [marker(objects, one, "transactions") for one in mixed]
    inputs = [RowSet(part["row_sum"], part["schema"]) for part in parts]
    assert len({len(part["schema"]) for part in parts}) == 2
    by_columns = [(one["columns"], one["row_sum"]) for one in made["row_sums"]]
    rows_of = RowSet(made["row_sum"], made["schema"], by_columns)
    assert keeps_all_rows(rows_of, inputs)
    for wrong in (inputs[:2], inputs[1:], [*inputs, inputs[1]], [inputs[0], inputs[2]]):
        assert not keeps_all_rows(rows_of, wrong)
    assert not keeps_all_rows(replace(rows_of, by_columns=None), inputs)


def test_the_same_range_compacted_twice_gives_the_same_bytes(
    runner: SparkRunner, objects: Path, ingested: list[TaskPayload]
) -> None:
    given = as_input(*ingested, name="logs")
    both = [_compact(SCOPE, given), _compact(SCOPE, given)]
    for payload in both:
        runner.run(payload)
    files = [directory(objects, one, "answer") / "answer_0_29.parquet" for one in both]
    assert files[0].read_bytes() == files[1].read_bytes()
    made = marker(objects, both[0], "answer")
    parts = [marker(objects, one, "logs") for one in ingested]
    sums = [RowSet(part["row_sum"], part["schema"]) for part in parts]
    assert keeps_all_rows(RowSet(made["row_sum"], made["schema"]), sums)


def test_blocks_that_are_not_final_are_not_compacted(
    runner: SparkRunner, objects: Path, ingested: list[TaskPayload]
) -> None:
    given = as_input(*ingested, name="blocks")
    runner.run(_compact(SCOPE, given, finality_depth_blocks=30))  # the head is block 59
    young = _compact(SCOPE, given, finality_depth_blocks=31)
    with pytest.raises(NotFinal, match="block 29 is not yet 31 blocks behind the head") as caught:
        runner.run(young)
    assert caught.value.retryable
    assert not directory(objects, young, "answer").exists()


def test_a_select_over_compacted_data_gives_the_same_rows(
    runner: SparkRunner, objects: Path, ingested: list[TaskPayload]
) -> None:
    whole = _compact(SCOPE, as_input(*ingested, name="logs"))
    runner.run(whole)
    compacted = {**as_input(whole, name="answer"), "name": "logs"}
    sql = "SELECT address, count(*) AS n FROM logs GROUP BY address ORDER BY address"
    both = [select(sql, given) for given in (compacted, as_input(*ingested, name="logs"))]
    for payload in both:
        runner.run(payload)
    assert rows(objects, both[0], "answer") == rows(objects, both[1], "answer")
