"""The jobs that get a new generation when a definition changes."""

from support.dags.dags import QUICKSTART
from trace_etl.dag.parsing import parse_dag
from trace_etl.policy.deploy.generations import generation_hashes


def find_changed_jobs(text: str) -> set[str]:
    before, after = generation_hashes(parse_dag(QUICKSTART)), generation_hashes(parse_dag(text))
    return {job for job in before if before[job] != after[job]}


def test_a_config_change_affects_the_job_and_all_jobs_downstream():
    assert find_changed_jobs(QUICKSTART.replace("{size: 100}", "{size: 50}")) == {
        "split",
        "ingest",
        "receivers",
    }


def test_a_change_of_the_last_job_affects_no_other_job():
    assert find_changed_jobs(QUICKSTART.replace("AS n", "AS m")) == {"receivers"}


def test_a_change_of_max_attempts_keeps_the_generation():
    text = QUICKSTART.replace("operator: cryo_ingest", "operator: cryo_ingest\n    max_attempts: 9")
    assert find_changed_jobs(text) == set()


def test_a_change_of_the_batch_size_keeps_the_generation_but_another_rpc_pool_does_not():
    config = "operator: cryo_ingest\n    config: {batch: 7}"
    assert find_changed_jobs(QUICKSTART.replace("operator: cryo_ingest", config)) == set()
    other_chain = "operator: cryo_ingest\n    config: {rpc: other}"
    moved = find_changed_jobs(QUICKSTART.replace("operator: cryo_ingest", other_chain))
    assert moved == {"ingest", "receivers"}


def test_a_change_of_the_outputs_creates_a_new_generation():
    text = QUICKSTART.replace("[blocks, transactions, logs]", "[blocks, logs]")
    assert find_changed_jobs(text) == {"ingest", "receivers"}


def test_other_columns_or_another_finality_or_level_of_ingest_keep_the_generation():
    for config in ("columns: full", "finality: provisional", "verify: bloom"):
        text = QUICKSTART.replace(
            "operator: cryo_ingest", f"operator: cryo_ingest\n    config: {{{config}}}"
        )
        assert find_changed_jobs(text) == set(), config
