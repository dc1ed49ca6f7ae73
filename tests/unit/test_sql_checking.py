"""Which jobs are checked with Spark before a deploy, and the positions of reported faults."""

from typing import Any

import pytest

from trace_etl.dag.parsing import parse_dag
from trace_etl.dag.positions import locate_inside
from trace_etl.policy.deploy.deploy_plan import plan_deploy
from trace_etl.policy.deploy.sql_checks import add_upstream_jobs, find_changed_sql_jobs

DAG = """
name: d
jobs:
  - {name: ask, source: {kind: manual}, outputs: [ranges]}
  - {name: get, operator: cryo_ingest, inputs: [{from: {job: ask}}], outputs: [logs]}
  - name: count
    operator: sql
    inputs: [{from: {job: get}}]
    outputs: [counted]
    config: {sql: "SELECT count(*) AS n FROM logs"}
  - name: show
    operator: query
    inputs: [{from: {job: count}, name: t}]
    outputs: [shown]
    config: {sql: "SELECT n FROM t", format: csv}
"""


def planned(*jobs: tuple[str, str, str, list[str]]) -> list[dict[str, Any]]:
    return [
        {"name": name, "change": change, "action": action, "fields": [{"field": f} for f in fields]}
        for name, change, action, fields in jobs
    ]


def test_all_sql_of_a_new_dag_is_checked() -> None:
    dag = parse_dag(DAG)
    new = [vars(job) for job in plan_deploy({}, {}, dag).jobs]
    assert find_changed_sql_jobs(dag, new) == ["count", "show"]


def test_unchanged_sql_is_not_checked() -> None:
    dag = parse_dag(DAG)
    unchanged = planned(
        ("ask", "unchanged", "keep", []),
        ("get", "changed", "adopt", ["config.batch"]),
        ("count", "changed", "adopt", ["max_attempts"]),
        ("show", "unchanged", "keep", []),
    )
    assert find_changed_sql_jobs(dag, unchanged) == []


@pytest.mark.parametrize(
    ("change", "action", "fields"),
    [
        ("added", "adopt", []),
        ("changed", "build", ["config.sql"]),
        ("unchanged", "start", []),
        ("changed", "adopt", ["inputs[0].where"]),
    ],
    ids=["added again", "its own text", "what it reads", "a filter"],
)
def test_a_query_with_a_change_in_text_or_inputs_is_checked(
    change: str, action: str, fields: list[str]
) -> None:
    assert find_changed_sql_jobs(parse_dag(DAG), planned(("show", change, action, fields))) == [
        "show"
    ]


def test_a_job_is_checked_with_everything_upstream() -> None:
    assert add_upstream_jobs(parse_dag(DAG), ["count"]) == {"count", "get", "ask"}


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("sql: |\n    SELECT a,\n           wrong\n      FROM t\n", (2, 12)),
        ("sql: >-\n    SELECT a,\n           wrong\n      FROM t\n", (2, 12)),
        ("sql: SELECT a,\n    wrong FROM t\n", (2, 5)),
        ("sql: 'SELECT a,\n    wrong FROM t'\n", (2, 5)),
        ('sql: "SELECT a, wrong"\n', (1, 17)),
        ("sql: SELECT a, wrong\n", (1, 16)),
    ],
    ids=["literal", "folded", "plain", "quoted", "one quoted line", "one line"],
)
def test_a_position_in_a_value_is_mapped_to_the_file(written: str, wanted: tuple[int, int]) -> None:
    import yaml

    value: str = yaml.safe_load(written)["sql"]
    before = value[: value.index("wrong")]
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
    position = locate_inside(written, ("sql",), line, column)
    assert position is not None
    # Lines are counted from the beginning of the file.
    row, at = position
    assert written.splitlines()[row - 1][at - 1 :].startswith("wrong")
    assert (row - (1 if written.startswith(("sql: |", "sql: >")) else 0), at) == wanted


def test_a_position_after_an_escape_is_not_guessed() -> None:
    assert locate_inside('sql: "SELECT \\"a\\", wrong"\n', ("sql",), 1, 13) is None
