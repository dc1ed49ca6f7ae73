"""A corpus of broken DAG files: each is refused with the very words beside it."""

from pathlib import Path

import jsonschema
import pytest

from support.dags import QUICKSTART
from trace_etl.dag.parsing import dag_schema, parse_dag
from trace_etl.dag.positions import locate
from trace_etl.model.errors import Invalid

CORPUS = Path(__file__).parent / "bad_dags"
BROKEN = sorted(path.stem for path in CORPUS.glob("*.yaml"))
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*/dag.yaml"))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_told_what_is_wrong_and_where(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_dag((CORPUS / f"{name}.yaml").read_text())
    faults = refused.value.faults
    assert [str(fault) for fault in faults] == (CORPUS / f"{name}.txt").read_text().splitlines()
    assert all(fault.line and fault.column for fault in faults)


def test_the_corpus_is_large_and_whole() -> None:
    assert len(BROKEN) >= 60
    assert sorted(path.stem for path in CORPUS.glob("*.txt")) == BROKEN


@pytest.mark.parametrize(
    "text",
    [QUICKSTART, *(p.read_text() for p in EXAMPLES)],
    ids=["test", *map(str, range(len(EXAMPLES)))],
)
def test_a_good_file_is_good_to_editors_too(text: str) -> None:
    schema = dag_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(locate(text).data, schema)
    parse_dag(text)


# What a schema can say, editors are told: of these files they must complain.
@pytest.mark.parametrize(
    "name",
    [
        "activation_wrong",
        "attempts_a_word",
        "config_misspelt",
        "config_missing",
        "job_unknown_field",
        "jobs_empty",
        "operator_misspelt",
        "priority_wrong",
        "runtime_unknown",
        "schema_unknown_type",
        "source_kind_wrong",
    ],
)
def test_editors_complain_of_what_a_schema_can_say(name: str) -> None:
    data = locate((CORPUS / f"{name}.yaml").read_text()).data
    assert list(jsonschema.Draft202012Validator(dag_schema()).iter_errors(data))
