"""`trace watch`, `trace trigger --wait` and `trace users`, against a Dispatcher that runs."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from support.changes import wait_until
from support.dispatcher import Live, Secrets, live
from support.lifecycle import bench
from trace_etl.lite import connection
from trace_etl.lite.databases import Dsns
from trace_etl.lite.home import Home

PROGRAM = [sys.executable, "-c", "from trace_etl.cli.main import main; main()"]
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


@pytest.fixture
def stack(secrets: Secrets, dsns: Dsns, tmp_path: Path) -> Generator[Live]:
    with live(secrets, dsns, tmp_path / "objects", loops=True) as running:
        home = tmp_path / "home"
        (home / "keys").mkdir(parents=True)
        (home / "keys" / "user").symlink_to(secrets.directory / "user")
        described = connection.describe(
            Home(home), api=running.cfg.api_port, internal=1, query=1, pid=1
        )
        fields = {
            **vars(described),
            "ca": str(secrets.ca),
            "user_token": str(secrets.directory / "user.jwt"),
        }
        connection.write(home / "connection.json", connection.Connection(**fields))
        yield running


def trace(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TRACE_HOME": str(tmp_path / "home")}
    return subprocess.run([*PROGRAM, *words], env=env, capture_output=True, text=True)


@contextmanager
def watching(tmp_path: Path, *words: str) -> Generator[subprocess.Popen[str]]:
    """`trace watch`, interrupted at the end of the block as a person would."""
    env = {**os.environ, "TRACE_HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [*PROGRAM, "watch", *words]
    with subprocess.Popen(command, env=env, text=True, **pipes) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
        finally:
            process.kill()


def test_watch_shows_what_happens_until_interrupted(stack: Live, tmp_path: Path) -> None:
    with watching(tmp_path, "chop", "--json") as process, stack.user() as user:
        assert process.stdout is not None
        lines = (json.loads(line) for line in process.stdout)
        assert next(lines)["kind"] == "ready"
        user.post("/v1/dags", json={"text": SPLIT}).raise_for_status()
        user.post("/v1/dags", json={"text": SPLIT.replace("chop", "other")}).raise_for_status()
        body = {"dag": "chop", "job": "request", "start": 0, "end": 9}
        user.post("/v1/triggers", json=body).raise_for_status()
        seen = []
        for line in lines:
            seen.append(line)
            if line["kind"] == "task" and line["job"] == "split" and line["status"] == "Completed":
                break
    assert {line["dag"] for line in seen} == {"chop"}
    assert "deploy" in [line["kind"] for line in seen]


def test_watch_for_people_is_a_line_a_change(stack: Live, tmp_path: Path) -> None:
    with watching(tmp_path, "--kind", "deploy") as process, stack.user() as user:
        assert process.stdout is not None and process.stderr is not None
        assert "Watching" in process.stderr.readline()
        user.post("/v1/dags", json={"text": SPLIT}).raise_for_status()
        assert "deploy" in (line := process.stdout.readline()) and "chop" in line


def test_a_trigger_may_wait_until_all_of_it_is_done(stack: Live, tmp_path: Path) -> None:
    with stack.user() as user:
        user.post("/v1/dags", json={"text": SPLIT}).raise_for_status()
    done = trace(tmp_path, "trigger", "chop", "request", "--range", "0-99", "--wait")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Done: chop.request for blocks 0-99.\n"
    with bench(stack) as made:
        assert [row["status"] for row in made.rows("SELECT status FROM tasks")] == ["Completed"] * 2


def test_a_waiting_trigger_tells_of_a_failure(stack: Live, tmp_path: Path) -> None:
    with bench(stack) as made:
        dag = made.dag("max_attempts: 1")

        def fail_it() -> None:
            wait_until(lambda: made.waiting(dag, "work") != [])
            attempt = made.claimed(made.waiting(dag, "work")[0])
            made.complete(attempt, "Failed", error_code="x", error_message="bad day")

        thread = threading.Thread(target=fail_it)
        thread.start()
        done = trace(tmp_path, "trigger", dag.name, "request", "--range", "0-9", "--wait")
        thread.join()
    assert done.returncode == 1
    assert "bad day" in done.stderr


def test_users_are_added_changed_and_given_tokens(stack: Live, tmp_path: Path) -> None:
    assert trace(tmp_path, "users", "add", "ada", "reader").returncode == 0
    token = trace(tmp_path, "users", "token", "ada").stdout.strip()
    with stack.user() as user:
        ada = httpx.Headers({"Authorization": f"Bearer {token}"})
        assert user.get("/v1/me", headers=ada).json()["role"] == "reader"
        assert trace(tmp_path, "users", "role", "ada", "writer").returncode == 0
        assert user.get("/v1/me", headers=ada).json()["role"] == "writer"
        assert trace(tmp_path, "users", "disable", "ada").returncode == 0
        assert user.get("/v1/me", headers=ada).status_code == 403
        listed = json.loads(trace(tmp_path, "users", "list", "--json").stdout)["items"]
        assert [(u["name"], u["disabled_at"] is None) for u in listed] == [
            ("ada", False),
            ("local", True),
        ]
    last = trace(tmp_path, "users", "disable", "local")
    assert last.returncode == 1 and "last admin" in last.stderr
