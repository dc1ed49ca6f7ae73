"""Parsing of DAG files: valid files, and the faults of invalid ones with their positions."""

import pytest

from support.dags.dags import QUICKSTART
from trace_etl.dag.parsing import parse_dag
from trace_etl.model.errors import Fault, Invalid


def parse_faults(text: str) -> list[Fault]:
    with pytest.raises(Invalid) as refused:
        parse_dag(text)
    return refused.value.faults


def test_jobs_of_the_quickstart_are_parsed_with_their_defaults():
    dag = parse_dag(QUICKSTART)
    assert [job.name for job in dag.jobs] == ["request", "split", "ingest", "receivers"]
    split, ingest = dag.job("split"), dag.job("ingest")
    assert (split.runtime, ingest.runtime) == ("dispatcher", "ecs_python")
    assert (ingest.max_attempts, ingest.heartbeat_timeout_seconds) == (3, 120)
    assert ingest.inputs[0].job == "split"
    assert dag.job("receivers").inputs[0].name == "logs"


def test_an_unknown_operator_is_reported_with_its_position_and_a_suggestion():
    (fault,) = parse_faults(QUICKSTART.replace("cryo_ingest", "cryo_injest"))
    assert (fault.field, fault.line) == ("jobs[2].operator", 14)
    assert "'cryo_injest'" in fault.message
    assert "'cryo_ingest'" in fault.message


def test_an_unknown_field_is_reported_with_its_position_and_a_suggestion():
    text = QUICKSTART.replace("  - name: ingest\n", "  - name: ingest\n    max_atempts: 4\n")
    (fault,) = parse_faults(text)
    assert (fault.field, fault.line, fault.column) == ("jobs[2].max_atempts", 14, 5)
    assert "did you mean 'max_attempts'" in fault.message


@pytest.mark.parametrize("chosen", ["output: logs", "output: 2", "output_index: 2"])
def test_an_edge_names_its_output_by_name_or_by_index(chosen: str):
    dag = parse_dag(QUICKSTART.replace("output: logs", chosen))
    assert [(item.job, item.output) for item in dag.jobs[3].inputs] == [("ingest", "logs")]
    published = parse_dag(QUICKSTART.replace("output: blocks}", "output_index: 0}"))
    assert published.publish[0].output == "blocks"


def test_an_unknown_input_job_is_reported_with_a_suggestion():
    (fault,) = parse_faults(QUICKSTART.replace("{job: split}", "{job: splt}"))
    assert fault.field == "jobs[2].inputs[0].from.job"
    assert "did you mean 'split'" in fault.message


def test_a_cycle_is_reported_with_the_names_of_its_jobs():
    text = QUICKSTART.replace("{from: {job: request}}", "{from: {job: receivers}}")
    (fault,) = parse_faults(text)
    assert "wait for each other" in fault.message
    for job in ("split", "ingest", "receivers"):
        assert job in fault.message


def test_a_yaml_syntax_error_is_reported_with_its_position():
    (fault,) = parse_faults("name: quickstart\njobs: [\n")
    assert (fault.line, fault.column) == (2, 7)
    assert "invalid YAML" in fault.message


def test_a_key_that_is_given_twice_is_refused():
    (fault,) = parse_faults(QUICKSTART.replace("jobs:", "name: b\njobs:"))
    assert (fault.field, fault.line, fault.message) == ("name", 3, "is given twice; keep one")


def test_all_faults_are_reported_together():
    text = QUICKSTART.replace("cryo_ingest", "x").replace("{size: 100}", "{size: 0, sise: 1}")
    fields = {fault.field for fault in parse_faults(text)}
    assert {"jobs[2].operator", "jobs[1].config.size", "jobs[1].config.sise"} <= fields


def test_an_empty_file_and_a_file_that_expands_by_aliases_are_refused():
    assert "empty" in parse_faults("")[0].message
    expanding = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "\n".join(
        f"{b}: &{b} [*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a}]"
        for a, b in zip("abcdefg", "bcdefgh", strict=True)
    )
    assert "more than 100,000 values" in parse_faults(expanding)[0].message


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
def test_each_fault_names_its_field(change, field):
    faults = parse_faults(QUICKSTART.replace(*change, 1))
    assert any(field in fault.field for fault in faults), faults
