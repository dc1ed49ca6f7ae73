"""`trace deploy` checks new SQL with Spark before it deploys."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.services.dispatcher import Live
from trace_etl.lite import connection
from trace_etl.lite.home import Home

PROGRAM = "from trace_etl.cli.main import main; main()"
WITHOUT_SPARK = f"import sys; sys.modules['pyspark'] = None; {PROGRAM}"
DAG = """
name: checked
jobs:
  - {name: ask, source: {kind: manual}, outputs: [ranges]}
  - {name: get, operator: cryo_ingest, inputs: [{from: {job: ask}}], outputs: [logs]}
  - name: count
    operator: sql
    inputs: [{from: {job: get}}]
    outputs: [counted]
    config:
      sql: |
        SELECT block_number,
               count(COLUMN) AS n
          FROM logs
         GROUP BY block_number
publish:
  - {name: counted, from: {job: count}}
"""


@dataclass(frozen=True)
class Shell:
    directory: Path
    live: Live

    def trace(self, *words: str, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "TRACE_HOME": str(self.directory)}
        environment.pop("TRACE_CHECK", None)
        return subprocess.run(
            [sys.executable, "-c", program, *words], env=environment, capture_output=True, text=True
        )

    def file(self, text: str) -> str:
        path = self.directory / "dag.yaml"
        path.write_text(text)
        return str(path)

    def deployed(self) -> list[Any]:
        with self.live.user() as user:
            return user.get("/v1/dags").json()["items"]


@pytest.fixture
def shell(dispatcher: Live, tmp_path: Path) -> Shell:
    described = connection.describe(
        Home(tmp_path), api=dispatcher.cfg.api_port, internal=1, query=1, pid=1
    )
    fields = {
        **vars(described),
        "ca": str(dispatcher.secrets.ca),
        "user_token": str(dispatcher.secrets.directory / "user.jwt"),
    }
    connection.write(tmp_path / "connection.json", connection.StackConnection(**fields))
    return Shell(tmp_path, dispatcher)


def test_an_unknown_column_stops_a_deploy_and_is_reported_with_its_position(shell: Shell) -> None:
    file = shell.file(DAG.replace("COLUMN", "adress"))
    done = shell.trace("deploy", file)
    assert done.returncode == 1 and done.stdout == ""
    progress, error = done.stderr.splitlines()
    assert "Checking the SQL of count with Spark" in progress
    assert error.startswith(f"error: {file}:13:22: jobs[2].config.sql: "), error
    assert "`adress` cannot be resolved" in error
    assert shell.deployed() == []


def test_checked_columns_are_stored_with_the_deploy_and_not_checked_again(shell: Shell) -> None:
    file = shell.file(DAG.replace("COLUMN", "address"))
    done = shell.trace("deploy", file)
    assert done.returncode == 0, done.stderr
    assert "Checking the SQL of count" in done.stderr
    with shell.live.user() as user:
        columns = user.get("/v1/datasets/counted").json()["columns"]
    assert columns == [
        {"name": "block_number", "type": "bigint", "comment": None},
        {"name": "n", "type": "bigint", "comment": None},
    ]

    # A deploy without new SQL does not need Spark, even when it is not installed.
    text = Path(file).read_text().replace("outputs: [logs]", "outputs: [logs], config: {batch: 9}")
    for words in (("deploy", file), ("plan", shell.file(text)), ("deploy", shell.file(text))):
        done = shell.trace(*words, program=WITHOUT_SPARK)
        assert done.returncode == 0 and done.stderr == "", done


def test_with_json_warnings_and_notes_do_not_damage_an_error(shell: Shell) -> None:
    rule = '{name: bad, event: failure, url: "https://example.org/hook", secret: nowhere}'
    file = shell.file(f"{DAG}notify: [{rule}]\n")
    for command in ("plan", "deploy"):
        done = shell.trace(command, file, "--json", program=WITHOUT_SPARK)
        assert (done.returncode, done.stdout) == (1, "")
        [error] = json.loads(done.stderr)["errors"]
        assert "pyspark is not installed" in error["message"]
        done = shell.trace(command, file, "--json", "--no-check", program=WITHOUT_SPARK)
        assert (done.returncode, done.stderr) == (0, "")
        [warning] = json.loads(done.stdout)["warnings"]
        assert "the secret 'nowhere' is missing" in warning


def test_a_deploy_without_spark_explains_how_to_skip_the_check(shell: Shell) -> None:
    file = shell.file(DAG.replace("COLUMN", "adress"))
    for command in ("plan", "deploy"):
        done = shell.trace(command, file, program=WITHOUT_SPARK)
        assert done.returncode == 1, done
        assert "pyspark is not installed" in done.stderr and "--no-check" in done.stderr
    done = shell.trace("deploy", "--no-check", file, program=WITHOUT_SPARK)
    assert done.returncode == 0 and done.stderr == "", done
