"""An operator is declared once and implemented once."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.packaging import install_test_operators, write_metadata
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


FAULTY = {
    "missing": ("no_such_module:OPERATOR", "No module named 'no_such_module'"),
    "word": ("json:__name__", "json:__name__ is not an Operator"),
    "sql": ("trace_test_operators:STUBBORN", "must have the name of its entry point"),
}


def test_trace_operators_shows_what_is_wrong_with_a_package(tmp_path: Path) -> None:
    install_test_operators(tmp_path)
    points = {name: value for name, (value, _) in FAULTY.items()}
    write_metadata(tmp_path, "faulty-operators", "1.0", points)
    shown = run_operators(tmp_path, "--json")
    faults = {item["name"]: item["fault"] for item in json.loads(shown) if item["fault"]}
    assert faults.keys() == FAULTY.keys()
    for name, (_, message) in FAULTY.items():
        assert message in faults[name], faults
    names = [item["name"] for item in json.loads(shown) if not item["fault"]]
    assert {"sql", "stubborn", "talkative"} <= set(names)  # the others can be used
    assert "cannot be used: " in run_operators(tmp_path)


def run_operators(packages: Path, *arguments: str) -> str:
    """Run `trace operators` in a process that finds the packages."""
    code = "from trace_etl.cli.main import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    command = [sys.executable, "-c", code, "operators", *arguments]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout
