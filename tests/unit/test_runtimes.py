"""The registry of runtimes: shipped entries, entries of a stack, and jobs that use them."""

from pathlib import Path

import pytest

from trace_etl.dag.checks.job_fields import find_handler_fault
from trace_etl.dag.operators import OPERATORS
from trace_etl.dag.parsing import dag_schema, parse_dag
from trace_etl.dag.runtimes import BadRuntimes, load_runtimes, shipped_runtimes
from trace_etl.model.errors import Invalid
from trace_etl.worker.settings import ServedRuntimes

ADDED = """
ecs_udf_python: {memory_mib: 1024}
small_functions: {launcher: sandbox, trust: untrusted, language: python, slots: 1, max_timeout: 10m}
nightly: {launcher: spark, trust: platform, queue: night, slots: 3, idle_timeout: 5m}
"""
DAG = """
name: test
jobs:
  - name: request
    source: {kind: manual}
    outputs: [requests]
  - name: count
    operator: sql
    runtime: %s
    inputs: [{from: {job: request}}]
    config: {sql: SELECT 1 AS n}
    outputs: [counts]
    timeout: 15m
"""


def make_file(directory: Path, text: str) -> Path:
    file = directory / "runtimes.yaml"
    file.write_text(text)
    return file


def test_the_eight_runtimes_of_the_specification_are_shipped() -> None:
    assert sorted(shipped_runtimes().entries) == [
        *("dispatcher", "ecs_platform", "ecs_python", "ecs_rust"),
        *("ecs_udf_python", "ecs_udf_rust", "ecs_udf_ts", "lambda"),
    ]
    untrusted = {n for n, entry in shipped_runtimes().entries.items() if not entry.is_trusted}
    assert untrusted == {"ecs_udf_python", "ecs_udf_ts", "ecs_udf_rust", "lambda"}


def test_a_stack_adds_entries_and_changes_fields(tmp_path: Path) -> None:
    registry = load_runtimes(make_file(tmp_path, ADDED))
    changed = registry.entries["ecs_udf_python"]
    assert (changed.memory_mib, changed.language) == (1024, "python")
    assert registry.queue_of("nightly") == "night"
    assert registry.queue_of("removed") == "removed"
    assert registry.fitting(OPERATORS["sql"].launchers)[0] == "ecs_python"
    assert parse_dag(DAG % "nightly", registry).job("count").runtime == "nightly"
    names = dag_schema(registry)["$defs"]["JobSection"]["properties"]["runtime"]["enum"]
    assert "nightly" in names
    with pytest.raises(Invalid, match="unknown runtime 'nightly'"):
        parse_dag(DAG % "nightly")


def test_runtimes_that_share_a_queue_share_its_slots(tmp_path: Path) -> None:
    registry = load_runtimes(make_file(tmp_path, ADDED))
    spark = ServedRuntimes.of(registry, registry.fitting(["spark"]), None)
    assert spark.queues == {"ecs_python": 2, "night": 3}
    assert spark.slots == 5
    assert ServedRuntimes.of(registry, ["nightly"], 7).queues == {"night": 7}


def test_the_idle_limit_is_that_of_the_runtime_and_runtimes_without_spark_have_none(
    tmp_path: Path,
) -> None:
    text = "ecs_python: {idle_timeout: 5m}\necs_platform: {idle_timeout: 2m}"
    registry = load_runtimes(make_file(tmp_path, text))
    served = ServedRuntimes.of(registry, registry.fitting(["spark", "process"]), None)
    limits = [served.idle_limit(name) for name in ("ecs_python", "ecs_platform", "ecs_rust", "")]
    assert limits == [300, 120, 300, 300]
    shipped = shipped_runtimes()
    served = ServedRuntimes.of(shipped, shipped.fitting(["spark", "process"]), None)
    assert served.idle_limit("ecs_python") == float("inf")
    assert ServedRuntimes.of(shipped, ["ecs_rust"], None).idle_limit("ecs_rust") == float("inf")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]", "must map names of runtimes"),
        ("a: 3", "a: must be a map of fields"),
        ("a: {launcher: spark}", "a.trust: is required"),
        ("a: {launcher: spark, trust: untrusted}", "a: trust must be platform"),
        ("a: {launcher: sandbox, trust: platform, language: node}", "a: trust must be untrusted"),
        ("a: {launcher: sandbox, trust: untrusted}", "a: language is required"),
        (
            "lambda: {isolation: reduced}",
            "lambda: isolation can be changed for the launcher sandbox only",
        ),
        ("a: {launcher: dispatcher, trust: platform}", "a.launcher: only the runtime dispatcher"),
        ("ecs_python: {slot: 2}", "ecs_python.slot: unknown field; did you mean 'slots'?"),
        ("ecs_python: {slots: 0}", "ecs_python.slots: must be"),
        ("ecs_python: {idle_timeout: soon}", "ecs_python.idle_timeout: must be a time"),
        ("ecs_rust: {memory_mib: 1024}", "memory_mib has an effect only with the launcher sandbox"),
        ("ecs_python: {processes: 9}", "processes has an effect only with the launcher sandbox"),
        ("ecs_rust: {temporary_mib: 9}", "temporary_mib has an effect only with the launcher"),
        ("ecs_udf_ts: {idle_timeout: 5m}", "only with the launcher spark or lambda; remove it"),
        ("A-b: {launcher: spark, trust: platform}", "A-b.name: "),
        ("a: {", "cannot be read"),
    ],
)
def test_an_invalid_file_is_refused_with_the_entry_and_the_field(
    tmp_path: Path, text: str, message: str
) -> None:
    file = make_file(tmp_path, text)
    with pytest.raises(BadRuntimes) as refused:
        load_runtimes(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert message in str(refused.value)


def test_a_longer_timeout_than_the_runtime_allows_is_refused(tmp_path: Path) -> None:
    registry = load_runtimes(make_file(tmp_path, "ecs_python: {max_timeout: 10m}"))
    with pytest.raises(Invalid) as refused:
        parse_dag(DAG % "ecs_python", registry)
    [fault] = refused.value.faults
    assert (fault.field, fault.line) == ("jobs[1].timeout", 13)
    assert "must be at most 600 s on the runtime ecs_python, not 900 s" in fault.message


@pytest.mark.parametrize(
    ("handler", "is_allowed"),
    [
        ("rule.handler", True),
        ("package.rule.handler", True),
        ("src/rules/rule-2.handler", True),
        ("bootstrap", True),
        ("../../etc/passwd", False),
        ("../rule.handler", False),
        ("/etc/rule.handler", False),
        ("src//rule.handler", False),
        ("-m.os", False),
        ("rule.handler\n", False),
        ("rule.hand ler", False),
    ],
)
def test_a_handler_is_a_function_of_a_module_in_the_bundle(handler: str, is_allowed: bool) -> None:
    runtime = load_runtimes(None).entries["ecs_udf_python"]
    assert (find_handler_fault(handler, runtime) is None) == is_allowed
