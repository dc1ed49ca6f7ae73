"""DAG files: what is accepted, and where the faults of the rest are."""

import pytest

from support.dags import QUICKSTART
from trace_etl.dag.parsing import parse_dag
from trace_etl.model.errors import Fault, Invalid


def faults(text: str) -> list[Fault]:
    with pytest.raises(Invalid) as refused:
        parse_dag(text)
    return refused.value.faults


def test_the_quickstart_becomes_jobs_with_defaults_filled_in():
    dag = parse_dag(QUICKSTART)
    assert [job.name for job in dag.jobs] == ["request", "split", "ingest", "receivers"]
    split, ingest = dag.job("split"), dag.job("ingest")
    assert (split.runtime, ingest.runtime) == ("dispatcher", "ecs_python")
    assert (ingest.max_attempts, ingest.heartbeat_timeout_seconds) == (3, 120)
    assert ingest.inputs[0].job == "split"
    assert dag.job("receivers").inputs[0].name == "logs"


def test_an_unknown_operator_names_itself_its_place_and_the_nearest_real_one():
    (fault,) = faults(QUICKSTART.replace("cryo_ingest", "cryo_injest"))
    assert (fault.field, fault.line) == ("jobs[2].operator", 14)
    assert "'cryo_injest'" in fault.message
    assert "'cryo_ingest'" in fault.message


def test_an_unknown_field_is_named_with_its_position_and_a_suggestion():
    text = QUICKSTART.replace("  - name: ingest\n", "  - name: ingest\n    max_atempts: 4\n")
    (fault,) = faults(text)
    assert (fault.field, fault.line, fault.column) == ("jobs[2].max_atempts", 14, 5)
    assert "did you mean 'max_attempts'" in fault.message


def test_a_missing_input_is_named():
    (fault,) = faults(QUICKSTART.replace("{job: split}", "{job: splt}"))
    assert fault.field == "jobs[2].inputs[0].from.job"
    assert "did you mean 'split'" in fault.message


def test_a_cycle_is_told_as_the_jobs_that_wait_for_each_other():
    text = QUICKSTART.replace("{from: {job: request}}", "{from: {job: receivers}}")
    (fault,) = faults(text)
    assert "wait for each other" in fault.message
    for job in ("split", "ingest", "receivers"):
        assert job in fault.message


def test_a_yaml_typo_is_told_with_line_and_column():
    (fault,) = faults("name: quickstart\njobs: [\n")
    assert fault.line == 3
    assert "not YAML" in fault.message


def test_a_key_given_twice_is_refused():
    (fault,) = faults(QUICKSTART.replace("jobs:", "name: b\njobs:"))
    assert (fault.field, fault.line, fault.message) == ("name", 3, "given twice; keep one")


def test_several_faults_come_at_once():
    text = QUICKSTART.replace("cryo_ingest", "x").replace("{size: 100}", "{size: 0, sise: 1}")
    found = {fault.field for fault in faults(text)}
    assert {"jobs[2].operator", "jobs[1].config.size", "jobs[1].config.sise"} <= found


def test_an_empty_file_and_a_bomb_are_refused():
    assert "empty" in faults("")[0].message
    bomb = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "\n".join(
        f"{b}: &{b} [*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a}]"
        for a, b in zip("abcdefg", "bcdefgh", strict=True)
    )
    assert "too large" in faults(bomb)[0].message


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (("source: {kind: manual}", "source: {kind: cron, schedule: 'x'}"), "source.schedule"),
        (("outputs: [blocks, transactions, logs]", "outputs: [blocks, blocks]"), "outputs"),
        (("outputs: [blocks, transactions, logs]", "outputs: [blocks, mints]"), "outputs"),
        (("operator: cryo_ingest", "operator: cryo_ingest\n    runtime: lambda"), "runtime"),
        (("operator: cryo_ingest", "operator: cryo_ingest\n    runtime: moon"), "runtime"),
        (("{job: ingest, output: logs}", "{job: ingest}"), "from"),
        (("{job: ingest, output: logs}", "{job: ingest, output: 7}"), "output"),
        (("output: logs}}", 'output: logs}, where: "a > 1"}'), "where"),
        (("name: quickstart", "name: Quick Start"), "name"),
        (("- name: split", "- name: ingest"), "name"),
    ],
)
def test_each_rule_names_its_field(change, field):
    found = faults(QUICKSTART.replace(*change, 1))
    assert any(field in fault.field for fault in found), found
