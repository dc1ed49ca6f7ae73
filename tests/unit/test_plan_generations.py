"""Which jobs get a new generation when a definition changes."""

from support.dags import QUICKSTART
from trace_etl.dag.parsing import parse_dag
from trace_etl.policy.generations import generation_hashes


def changed(text: str) -> set[str]:
    before, after = generation_hashes(parse_dag(QUICKSTART)), generation_hashes(parse_dag(text))
    return {job for job in before if before[job] != after[job]}


def test_a_changed_config_reaches_the_job_and_everything_below_it():
    assert changed(QUICKSTART.replace("{size: 100}", "{size: 50}")) == {
        "split",
        "ingest",
        "receivers",
    }


def test_a_change_at_the_end_leaves_the_rest_alone():
    assert changed(QUICKSTART.replace("AS n", "AS m")) == {"receivers"}


def test_how_often_to_try_does_not_change_the_data():
    text = QUICKSTART.replace("operator: cryo_ingest", "operator: cryo_ingest\n    max_attempts: 9")
    assert changed(text) == set()


def test_how_much_to_ask_for_at_once_does_not_change_the_data():
    config = "operator: cryo_ingest\n    config: {batch: 7}"
    assert changed(QUICKSTART.replace("operator: cryo_ingest", config)) == set()
    other_chain = "operator: cryo_ingest\n    config: {rpc: other}"
    moved = changed(QUICKSTART.replace("operator: cryo_ingest", other_chain))
    assert moved == {"ingest", "receivers"}


def test_a_new_output_has_to_be_filled_so_the_job_runs_again():
    text = QUICKSTART.replace("[blocks, transactions, logs]", "[blocks, logs]")
    assert changed(text) == {"ingest", "receivers"}
