"""`trace plan`, `trace deploy --wait`, `trace rollout`, `trace rollback`, `trace promote`."""

import json
import os
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.cli import TRACE, run_command
from support.dags.rollouts import RolloutDag
from support.lifecycle.lifecycle import bench
from support.services.dispatcher import Secrets, live
from trace_etl.lite import connection
from trace_etl.lite.home import Home
from trace_etl.lite.postgres.databases import Dsns


@dataclass(frozen=True)
class Shell:
    """The `trace` command, a Dispatcher whose loops run, and a DAG to change."""

    directory: Path
    dag: RolloutDag

    def file(self, **change: Any) -> str:
        path = self.directory / "dag.yaml"
        path.write_text(self.dag.text(**change))
        return str(path)

    @property
    def settings(self) -> dict[str, str]:
        return {"TRACE_HOME": str(self.directory / "home"), "TRACE_CHECK": "0"}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command(*arguments, **self.settings)

    def out(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.returncode == 0, result
        return result.stdout

    def json(self, *arguments: str) -> dict[str, Any]:
        return json.loads(self.out(*arguments, "--json"))

    def deploy_and_build(self, end: int) -> None:
        """Deploy, trigger blocks and finish all tasks while the loops run."""
        self.dag.deploy()
        self.dag.trigger(0, end)
        while len(self.dag.seen("done")[1]) < (end + 1) // 10:
            self.dag.finish_all("work", "after")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*TRACE, *arguments],
            env={**os.environ, **self.settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def shell(secrets: Secrets, dsns: Dsns, tmp_path: Path) -> Generator[Shell]:
    with (
        live(secrets, dsns, tmp_path / "objects", loops=True) as running,
        bench(running) as own_bench,
    ):
        home = tmp_path / "home"
        home.mkdir()
        fields = {
            **vars(
                connection.describe(
                    Home(home), api=running.cfg.api_port, internal=1, query=1, pid=1
                )
            ),
            "ca": str(secrets.ca),
            "user_token": str(secrets.directory / "user.jwt"),
        }
        connection.write(home / "connection.json", connection.StackConnection(**fields))
        yield Shell(tmp_path, RolloutDag(own_bench))


def test_a_change_goes_through_plan_deploy_rollout_and_rollback(shell: Shell) -> None:
    dag = shell.dag
    assert "(new)" in shell.out("plan", shell.file())
    shell.deploy_and_build(29)
    before = dag.seen("out")

    text = shell.out("plan", shell.file(column=2))
    assert (
        "~ work: new generation (config.sql), built beside the old one: out: 3 partitions (0"
        in text
    )
    assert "config.sql: SELECT 1 FROM pieces → SELECT 2 FROM pieces" in text
    assert "~ after: new generation (upstream work)" in text
    assert "= request, split: keep running" in text
    assert "6 partitions to rebuild, by about 6 tasks" in text
    assert shell.json("plan", shell.file(column=2))["plan"]["partitions"] == 6

    command = shell.start("deploy", shell.file(column=2), "--wait")
    while command.poll() is None:
        dag.finish_all("work", "after")
    output, errors = command.communicate()
    assert command.returncode == 0, errors
    assert "Complete: the new generations are current." in output
    assert dag.seen("out")[0] != before[0]
    assert "this text is deployed already" in shell.out("plan", shell.file(column=2))
    assert ": complete" in shell.out("rollout", dag.name)

    assert "again" in shell.out("rollback", dag.name)
    assert dag.seen("out") == before
    again = shell.run("rollback", dag.name)
    assert (again.returncode, "no version before" in again.stderr) == (1, True)


def test_deploy_wait_ends_with_the_failed_task_when_only_failures_are_left(shell: Shell) -> None:
    dag = shell.dag
    shell.deploy_and_build(9)
    command = shell.start("deploy", shell.file(column=2), "--wait", "--json")
    while not (queued := dag.queued("work")):
        assert command.poll() is None
    attempt = dag.bench.claimed(queued[0])
    failure = {"error_code": "sql", "error_message": "no column 2", "retryable": False}
    assert dag.bench.complete(attempt, "Failed", **failure).status_code == 200
    output, errors = command.communicate(timeout=240)
    assert command.returncode == 1
    assert "stuck: 1 task failed permanently" in errors
    assert f"({attempt.task_id}): no column 2" in errors
    assert json.loads(output)["rollout"]["state"] == "building"
    assert "0 of 10 blocks" in shell.out("rollout", dag.name)
    assert "current" in shell.out("promote", dag.name)
    assert shell.json("rollout", dag.name)["state"] == "complete"


_READER = """
name: {name}_reader
jobs:
  - name: read
    operator: sql
    inputs: [{{from: {{dataset: {name}_out}}}}]
    outputs: [rows]
    config: {{sql: "SELECT 1 FROM {name}_out"}}
"""


def test_deploy_wait_fails_with_the_reason_when_initial_tasks_fail_and_passes_after_a_retry(
    shell: Shell,
) -> None:
    shell.deploy_and_build(9)
    file = shell.directory / "reader.yaml"
    file.write_text(_READER.format(name=shell.dag.name))
    reader = RolloutDag(shell.dag.bench, f"{shell.dag.name}_reader")
    command = shell.start("deploy", str(file), "--wait")
    while not (queued := reader.queued("read")):
        assert command.poll() is None
    failure = {"error_code": "sql", "error_message": "no such column", "retryable": False}
    attempt = reader.bench.claimed(queued[0])
    assert reader.bench.complete(attempt, "Failed", **failure).status_code == 200
    output, errors = command.communicate(timeout=240)
    assert command.returncode == 1
    assert "Complete" not in output
    assert f"error: {reader.name}.read of 0-9: " in errors and "no such column" in errors

    assert shell.json("retry", queued[0])["retried"] == 1
    command = shell.start("deploy", str(file), "--wait")
    while command.poll() is None:
        reader.finish_all("read")
    output, errors = command.communicate()
    assert (command.returncode, "Complete" in output) == (0, True), errors
