"""Which jobs get a new generation when a definition changes."""

from support.dags import QUICKSTART
from trace_etl.plan.dagfile import parse_dag
from trace_etl.plan.generations import generation_hashes


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
