"""Every example DAG is valid."""

from pathlib import Path

import pytest

from trace_etl.dag.parsing import parse_dag

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    "name", sorted({one.parent.name for one in EXAMPLES.glob("*/dag.yaml")} - {"operators"})
)
def test_an_example_dag_has_no_faults(name: str) -> None:
    assert parse_dag((EXAMPLES / name / "dag.yaml").read_text()).name == name
