"""An operator is declared once and implemented once."""

import inspect

import pytest

from trace_etl.dag.operators import OPERATORS
from trace_etl.spark.errors import BadTask
from trace_etl.spark.operators import find_operator


@pytest.mark.parametrize("name", [op.name for op in OPERATORS.values() if op.is_for_workers])
def test_every_operator_for_workers_has_a_module_that_takes_its_config(name: str) -> None:
    config = list(inspect.signature(find_operator(name)).parameters.values())[1]
    assert config.annotation is OPERATORS[name].config


@pytest.mark.parametrize("name", ["source", "brew_coffee", "__init__", "..runner"])
def test_an_operator_that_is_not_declared_for_workers_is_not_imported(name: str) -> None:
    with pytest.raises(BadTask, match="cannot run it"):
        find_operator(name)
