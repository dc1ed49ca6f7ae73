"""`trace plan`, `trace deploy --wait`, `trace rollout`, `trace rollback`, `trace promote`."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.dispatcher import Secrets, live
from support.lifecycle import bench
from support.rollouts import RolloutDag
from trace_etl.lite import connection
from trace_etl.lite.home import Home
from trace_etl.lite.postgres.databases import Dsns

PROGRAM = [sys.executable, "-c", "from trace_etl.cli.main import main; main()"]


@dataclass(frozen=True)
class Shell:
    """The program beside a Dispatcher whose loops run, and a DAG to change."""

    directory: Path
    story: RolloutDag

    def file(self, **change: Any) -> str:
        path = self.directory / "dag.yaml"
        path.write_text(self.story.text(**change))
        return str(path)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "TRACE_HOME": str(self.directory / "home"), "TRACE_CHECK": "0"}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *words], env=self.environment, capture_output=True, text=True
        )

    def out(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done
        return done.stdout

    def json(self, *words: str) -> dict[str, Any]:
        return json.loads(self.out(*words, "--json"))

    def built(self, end: int) -> None:
        """Deploy, ask for blocks, and finish everything, while the loops do their part."""
        self.story.deploy()
        self.story.trigger(0, end)
        while len(self.story.seen("done")[1]) < (end + 1) // 10:
            self.story.finish_all("work", "after")

    def waiting(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*PROGRAM, *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def shell(secrets: Secrets, dsns: Dsns, tmp_path: Path) -> Generator[Shell]:
    with live(secrets, dsns, tmp_path / "objects", loops=True) as running, bench(running) as made:
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
        yield Shell(tmp_path, RolloutDag(made))


def test_a_change_from_plan_to_rollback(shell: Shell) -> None:
    story = shell.story
    assert "(new)" in shell.out("plan", shell.file())
    shell.built(29)
    before = story.seen("out")

    text = shell.out("plan", shell.file(column=2))
    assert (
        "~ work: new generation (config.sql), built beside the old one: out: 3 partitions (0"
        in text
    )
    assert "config.sql: SELECT 1 FROM pieces → SELECT 2 FROM pieces" in text
    assert "~ after: new generation (upstream work)" in text
    assert "= request, split: keep running" in text
    assert "6 partitions to rebuild" in text
    assert shell.json("plan", shell.file(column=2))["plan"]["partitions"] == 6

    waiting = shell.waiting("deploy", shell.file(column=2), "--wait")
    while waiting.poll() is None:
        story.finish_all("work", "after")
    said, wrong = waiting.communicate()
    assert waiting.returncode == 0, wrong
    assert "Complete: the new generations are current." in said
    assert story.seen("out")[0] != before[0]
    assert "this text is deployed already" in shell.out("plan", shell.file(column=2))
    assert ": complete" in shell.out("rollout", story.name)

    assert "again" in shell.out("rollback", story.name)
    assert story.seen("out") == before
    again = shell.run("rollback", story.name)
    assert (again.returncode, "no version before" in again.stderr) == (1, True)


def test_waiting_ends_when_only_failures_are_left_and_says_which(shell: Shell) -> None:
    story = shell.story
    shell.built(9)
    waiting = shell.waiting("deploy", shell.file(column=2), "--wait", "--json")
    while not (queued := story.queued("work")):
        assert waiting.poll() is None
    attempt = story.bench.claimed(queued[0])
    words = {"error_code": "sql", "error_message": "no column 2", "retryable": False}
    assert story.bench.complete(attempt, "Failed", **words).status_code == 200
    said, wrong = waiting.communicate(timeout=240)
    assert waiting.returncode == 1
    assert "stuck: 1 task failed permanently" in wrong
    assert f"({attempt.task_id}): no column 2" in wrong
    assert json.loads(said)["rollout"]["state"] == "building"
    assert "0 of 10 blocks" in shell.out("rollout", story.name)
    assert "current" in shell.out("promote", story.name)
    assert shell.json("rollout", story.name)["state"] == "complete"
