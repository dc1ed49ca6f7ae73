"""Invalid DAG files: each is refused with the messages in the text file beside it."""

from pathlib import Path

import jsonschema
import pytest

from support.dags.dags import QUICKSTART
from trace_etl.dag.parsing import dag_schema, parse_dag
from trace_etl.dag.positions import locate
from trace_etl.model.errors import Invalid

CORPUS = Path(__file__).parent / "bad_dags"
INVALID = sorted(path.stem for path in CORPUS.glob("*.yaml"))
# The operator of `operators` belongs to a package of its own: `test_operator_host` installs it.
EXAMPLES = sorted(
    path
    for path in (Path(__file__).parents[2] / "examples").glob("*/dag.yaml")
    if path.parent.name != "operators"
)


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_file_is_refused_with_the_expected_messages_and_positions(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_dag((CORPUS / f"{name}.yaml").read_text())
    faults = refused.value.faults
    assert [str(fault) for fault in faults] == (CORPUS / f"{name}.txt").read_text().splitlines()
    assert all(fault.line and fault.column for fault in faults)


def test_every_invalid_file_has_its_expected_messages() -> None:
    assert len(INVALID) >= 60
    assert sorted(path.stem for path in CORPUS.glob("*.txt")) == INVALID


@pytest.mark.parametrize(
    "text",
    [QUICKSTART, *(p.read_text() for p in EXAMPLES)],
    ids=["test", *map(str, range(len(EXAMPLES)))],
)
def test_valid_files_match_the_json_schema(text: str) -> None:
    schema = dag_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(locate(text).data, schema)
    parse_dag(text)


# The faults of these files can be expressed in JSON Schema, so editors must report them.
@pytest.mark.parametrize(
    "name",
    [
        "activation_wrong",
        "attempts_a_string",
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
def test_the_json_schema_refuses_what_it_can_express(name: str) -> None:
    data = locate((CORPUS / f"{name}.yaml").read_text()).data
    assert list(jsonschema.Draft202012Validator(dag_schema()).iter_errors(data))
