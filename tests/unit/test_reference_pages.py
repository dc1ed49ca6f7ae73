"""The generated reference pages match the code."""

import os
import subprocess
import sys

import pytest

from support.reference import DIRECTORY

COMMANDS = {
    "cli.md": ["-m", "typer", "trace_etl.cli.main", "utils", "docs", "--name", "trace"],
    "dag.schema.json": ["-c", "from trace_etl.cli.main import main; main()", "schema"],
    "operators.md": ["-m", "trace_etl.spark.operator_reference"],
}


@pytest.mark.parametrize("page", COMMANDS)
def test_each_generated_page_matches_the_code(page: str) -> None:
    fresh = subprocess.run(
        [sys.executable, *COMMANDS[page]],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TERM": "dumb"},
    ).stdout
    assert (DIRECTORY / page).read_text() == fresh, "stale: run `make reference`"
