"""`trace watch`, `trace changes`, `trace trigger --wait` and `trace users`, against a running Dispatcher."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from support.cli import run_command
from support.lifecycle.lifecycle import Attempt, bench
from support.services.dispatcher import Live, Secrets, live
from support.services.postgres import Templates, copied
from support.waiting import eventually
from trace_etl.lite import connection
from trace_etl.lite.home import Home

SPLIT = """
name: chop
jobs:
  - {name: request, activation: source, source: {kind: manual}, outputs: [ranges]}
  - name: split
    operator: range_splitter
    inputs: [{from: {job: request}}]
    outputs: [ranges]
    config: {size: 10}
"""


@dataclass(frozen=True)
class Stack:
    """A running Dispatcher with its loops, and a home directory that points to it."""

    live: Live
    home: Path

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "TRACE_HOME": str(self.home), "PYTHONUNBUFFERED": "1"}

    def trace(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command(*arguments, TRACE_HOME=str(self.home))


@pytest.fixture(scope="module")
def stack(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Stack]:
    home = tmp_path_factory.mktemp("home")
    with copied(templates) as dsns, live(secrets, dsns, home / "objects", loops=True) as running:
        (home / "keys").mkdir()
        (home / "keys" / "user").symlink_to(secrets.directory / "user")
        described = connection.describe(
            Home(home), api=running.cfg.api_port, internal=1, query=1, pid=1
        )
        token = secrets.directory / "user.jwt"
        fields = {**vars(described), "ca": str(secrets.ca), "user_token": str(token)}
        connection.write(home / "connection.json", connection.StackConnection(**fields))
        yield Stack(running, home)


# A program started in the background ignores SIGINT, so the handler is restored first.
INTERRUPTIBLE_PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from trace_etl.cli.main import main; main()"
)


@contextmanager
def watching(
    stack: Stack, *arguments: str, command_name: str = "watch"
) -> Generator[subprocess.Popen[str]]:
    """Run a command that follows changes, and press Ctrl-C at the end of the block."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", INTERRUPTIBLE_PROGRAM, command_name, *arguments]
    with subprocess.Popen(command, env=stack.env, text=True, **pipes) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
        finally:
            process.kill()


def test_watch_prints_json_lines_until_interrupted(stack: Stack) -> None:
    with watching(stack, "chop", "--json") as process, stack.live.user() as user:
        assert process.stdout is not None
        lines = (json.loads(line) for line in process.stdout)
        assert next(lines)["kind"] == "ready"
        user.post("/v1/dags", json={"text": SPLIT}).raise_for_status()
        user.post("/v1/dags", json={"text": SPLIT.replace("chop", "other")}).raise_for_status()
        body = {"dag": "chop", "job": "request", "start": 0, "end": 9}
        user.post("/v1/triggers", json=body).raise_for_status()
        changes = []
        for line in lines:
            changes.append(line)
            if line["kind"] == "task" and line["job"] == "split" and line["status"] == "Completed":
                break
    assert {line["dag"] for line in changes} == {"chop"}
    assert "deploy" in [line["kind"] for line in changes]


def test_watch_prints_one_line_per_change(stack: Stack) -> None:
    with watching(stack, "--kind", "deploy") as process, stack.live.user() as user:
        assert process.stdout is not None and process.stderr is not None
        assert "Watching" in process.stderr.readline()
        text = SPLIT.replace("chop", "seen")
        user.post("/v1/dags", json={"text": text}).raise_for_status()
        assert "deploy" in (line := process.stdout.readline()) and "seen" in line


def test_changes_of_a_dataset_are_listed_and_followed_from_a_cursor(stack: Stack) -> None:
    with bench(stack.live) as own_bench:
        dag = own_bench.dag()

        def publish(attempt: Attempt) -> None:
            published = own_bench.write_output(attempt)
            own_bench.complete(attempt, datasets_published=[published]).raise_for_status()

        trigger = {"dag": dag.name, "job": "request", "start": 0, "end": 19}
        own_bench.user.post("/v1/triggers", json=trigger).raise_for_status()
        first, second = eventually(
            lambda: len(t := own_bench.waiting(dag, "work")) == 2 and t, "both tasks are queued"
        )
        publish(own_bench.claimed(first))
        listed = json.loads(stack.trace("changes", dag.published, "--json").stdout)
        assert [item["kind"] for item in listed["items"]] == ["version", "published"]
        table = stack.trace("changes", dag.published, "--since", listed["items"][0]["cursor"])
        assert "0-9" in table.stdout and "version" not in table.stdout
        assert f"--since {listed['cursor']}" in table.stderr
        arguments = (dag.published, "--since", listed["cursor"], "--follow", "--json")
        with watching(stack, *arguments, command_name="changes") as process:
            publish(own_bench.claimed(second))
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["partition_key"] == "10-19"
        refused = stack.trace("changes", dag.published, "--since", "1-00000000")
    assert refused.returncode == 1 and "read the whole dataset" in refused.stderr


def test_a_trigger_with_wait_returns_when_all_tasks_are_done(stack: Stack) -> None:
    with stack.live.user() as user:
        text = SPLIT.replace("chop", "waited")
        user.post("/v1/dags", json={"text": text}).raise_for_status()
    result = stack.trace("trigger", "waited", "request", "--range", "0-99", "--wait")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "Done: waited.request for blocks 0-99.\n"
    with stack.live.user() as user:
        items = user.get("/v1/tasks", params={"dag": "waited"}).json()["items"]
    assert [item["status"] for item in items] == ["Completed"] * 2


def test_a_trigger_with_wait_reports_a_failed_task(stack: Stack) -> None:
    with bench(stack.live) as own_bench:
        dag = own_bench.dag("max_attempts: 1")

        def fail_task() -> None:
            task_id = eventually(lambda: own_bench.waiting(dag, "work"), "a task is queued")[0]
            attempt = own_bench.claimed(task_id)
            own_bench.complete(attempt, "Failed", error_code="x", error_message="bad day")

        thread = threading.Thread(target=fail_task)
        thread.start()
        result = stack.trace("trigger", dag.name, "request", "--range", "0-9", "--wait")
        thread.join()
    assert result.returncode == 1
    assert "bad day" in result.stderr


def test_users_are_added_changed_disabled_and_given_tokens(stack: Stack) -> None:
    assert stack.trace("users", "add", "ada", "reader").returncode == 0
    token = stack.trace("users", "token", "ada").stdout.strip()
    typo = stack.trace("users", "token", "adda")
    assert typo.returncode == 1 and "no user 'adda'" in typo.stderr and not typo.stdout
    with stack.live.user() as user:
        ada = httpx.Headers({"Authorization": f"Bearer {token}"})
        assert user.get("/v1/me", headers=ada).json()["role"] == "reader"
        assert stack.trace("users", "role", "ada", "writer").returncode == 0
        assert user.get("/v1/me", headers=ada).json()["role"] == "writer"
        assert stack.trace("users", "disable", "ada").returncode == 0
        assert user.get("/v1/me", headers=ada).status_code == 403
        listed = json.loads(stack.trace("users", "list", "--json").stdout)["items"]
        assert [(u["name"], u["disabled_at"] is None) for u in listed] == [
            ("ada", False),
            ("local", True),
        ]
    last = stack.trace("users", "disable", "local")
    assert last.returncode == 1 and "last admin" in last.stderr
