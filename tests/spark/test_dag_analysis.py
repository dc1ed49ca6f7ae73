"""Spark's analyser checks the SQL of a whole DAG before anything runs."""

import re
from collections.abc import Generator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from trace_etl.dag.parsing import parse_dag
from trace_etl.spark.analysis import analyse_dag
from trace_etl.spark.runner import SparkRunner

EXAMPLES = Path(__file__).parents[2] / "examples"
DAG = """
name: d
jobs:
  - {name: ask, source: {kind: manual}, outputs: [ranges]}
  - name: last
    operator: sql
    inputs: [{from: {job: first}, name: t}]
    outputs: [last]
    config: {sql: "SELECT n + 1 AS m FROM t"}
  - name: get
    operator: cryo_ingest
    inputs: [{from: {job: ask}}]
    outputs: [logs]
  - name: first
    operator: sql
    inputs: [{from: {job: get}WHERE}]
    outputs: [first]
    config:
      sql: |
        SELECT address, count(*) AS n
          FROM logs
         GROUP BY address
  - name: outer
    operator: sql
    inputs: [{from: {dataset: elsewhere}}]
    outputs: [outer]
    config: {sql: SELECT * FROM elsewhere}
"""


@pytest.fixture
def session(runner: SparkRunner) -> Generator[SparkSession]:
    with runner.session.lease(runner.session.get(), ["logs", "t", "elsewhere"]) as spark:
        yield spark


def test_the_columns_of_every_output_are_known_before_a_run(session: SparkSession) -> None:
    found = analyse_dag(session, parse_dag(DAG.replace("WHERE", "")), {})
    assert found.problems == [] and found.unknown == ["outer"]
    shapes = {key: schema.simpleString() for key, schema in found.outputs.items()}
    assert shapes["first", "first"] == "struct<address:binary,n:bigint>"
    assert shapes["last", "last"] == "struct<m:bigint>"


def test_a_check_that_cannot_run_is_found_before_a_run(session: SparkSession) -> None:
    checks = """
    checks:
      - {condition: "number > 0", name: good}
      - {unique: [nowhere]}
      - {condition: "n > (SELECT 1)"}
      - {references: {columns: [n], input: logs, to: [nowhere]}}
  - name: outer"""
    text = (
        DAG.replace("WHERE", "").replace("\n  - name: outer", checks).replace("number > 0", "n > 0")
    )
    found = analyse_dag(session, parse_dag(text), {})
    assert [(p.job, p.check) for p in found.problems] == [(3, 1), (3, 2), (3, 3)]
    assert found.problems[0].message == (
        "check unique_nowhere: first has no column nowhere; it has address, n"
    )
    assert "one expression over the columns" in found.problems[1].message
    assert "logs has no column nowhere" in found.problems[2].message


def test_the_columns_of_a_published_dataset_come_from_the_stack(session: SparkSession) -> None:
    known = StructType.fromDDL("a int")
    found = analyse_dag(session, parse_dag(DAG.replace("WHERE", "")), {"elsewhere": known})
    assert found.outputs["outer", "outer"].simpleString() == "struct<a:int>"


@pytest.mark.parametrize(
    ("old", "new", "job", "message"),
    [
        ("address, count", "adress, count", 3, r"`adress` cannot be resolved.*`address`.*line 1"),
        ("GROUP BY address", "GROUP YB address", 3, r"Syntax error.*line 3"),
        ("n + 1 AS m", "n + 1 AS m, n AS M", 1, "two columns are called M"),
        ("WHERE", ", where: {topic9: 1}", 3, "where: there is no column topic9"),
    ],
    ids=["column", "syntax", "twice", "where"],
)
def test_an_invalid_select_is_reported_with_its_position(
    session: SparkSession, old: str, new: str, job: int, message: str
) -> None:
    text = DAG.replace(old, new).replace("WHERE", "")
    [found] = analyse_dag(session, parse_dag(text), {}).problems
    assert found.job == job
    assert re.search(message, found.message), found.message


@pytest.mark.parametrize(
    ("key", "column", "message"),
    [("address", "map(address, n)", "append stores numbers"), ("adress", "n", "no column adress")],
    ids=["type", "key"],
)
def test_columns_that_append_cannot_store_are_reported_before_a_run(
    session: SparkSession, key: str, column: str, message: str
) -> None:
    kept = f"""
  - name: kept
    operator: sql
    inputs: [{{from: {{job: first}}, name: t}}]
    outputs: [kept]
    update_strategy: append
    unique_key: [{key}]
    config: {{sql: "SELECT address, {column} AS n FROM t"}}
"""
    [found] = analyse_dag(session, parse_dag(DAG.replace("WHERE", "") + kept), {}).problems
    assert message in found.message


# The operator of `operators` belongs to a package of its own: `test_operator_host` installs it.
EXAMPLE_DAGS = sorted({one.parent.name for one in EXAMPLES.glob("*/dag.yaml")} - {"operators"})


@pytest.mark.parametrize("name", EXAMPLE_DAGS)
def test_an_example_dag_has_no_problems(session: SparkSession, name: str) -> None:
    found = analyse_dag(session, parse_dag((EXAMPLES / name / "dag.yaml").read_text()), {})
    assert found.problems == [] and found.unknown == []
