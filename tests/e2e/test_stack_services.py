"""The whole stack with its real services and a real JVM, through the command line."""

import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from support.waiting import eventually
from trace_etl.lite import stack as lite
from trace_etl.lite import status as checks
from trace_etl.lite.home import Home
from trace_etl.lite.processes import process_tree

TRACE = [sys.executable, "-c", "from trace_etl.cli.main import main; main()"]


def trace(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRACE_HOME": str(home)}
    return subprocess.run([*TRACE, *words], capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    made = tmp_path_factory.mktemp("services") / "home"
    started = trace(made, "up", "--detach")
    try:
        assert started.returncode == 0, started.stderr
        yield made
    finally:
        lite.purge(Home(made))


def connection(home: Path) -> dict[str, Any]:
    return json.loads((home / "connection.json").read_text())


def part(home: Path, name: str) -> checks.ProcessStatus:
    """Check in process: starting one process per poll would take the cores from the stack."""
    return next(part for part in checks.check(Home(home)).parts if part.name == name)


def names_of_running(processes: list[psutil.Process]) -> set[str]:
    return {process.name() for process in processes if process_tree.is_running(process)}


def client(home: Path) -> httpx.Client:
    context = ssl.create_default_context(cafile=connection(home)["ca"])
    return httpx.Client(verify=context, trust_env=False)


def test_every_service_answers_and_accepts_the_local_user(home: Path) -> None:
    found = connection(home)
    token = Path(found["user_token"]).read_text().strip()
    with client(home) as http:
        for name in ("api_url", "internal_url", "query_url"):
            assert http.get(f"{found[name]}/healthz").json()["status"] == "ok"
        url = f"{found['api_url']}/v1/dags"
        assert http.get(url).status_code == 401
        assert http.get(url, headers={"authorization": f"Bearer {token}"}).status_code == 200


def test_the_jvm_of_a_killed_worker_ends_and_the_worker_is_restarted(home: Path) -> None:
    eventually(lambda: part(home, "worker").spark == "ready")
    worker = part(home, "worker").pid
    jvms = [p for p in process_tree.session_members(worker) if p.name() == "java"]
    assert len(jvms) == 1
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: not process_tree.is_running(jvms[0]))
    eventually(lambda: part(home, "worker").restarts == 1)
    eventually(lambda: checks.check(Home(home)).state == "healthy")
    assert trace(home, "status").returncode == 0


def test_a_killed_sink_is_restarted(home: Path) -> None:
    eventually(lambda: part(home, "sink").health == "healthy")
    os.kill(part(home, "sink").pid, signal.SIGKILL)
    eventually(lambda: part(home, "sink").restarts == 1)
    eventually(lambda: part(home, "sink").health == "healthy")
    assert (home / "logs" / "sink.log").read_text().count('"sink_ready"') == 2


def test_down_stops_every_process(home: Path) -> None:
    supervisor = psutil.Process(connection(home)["supervisor_pid"])
    eventually(lambda: "java" in names_of_running(supervisor.children(recursive=True)))
    descendants = supervisor.children(recursive=True)
    assert trace(home, "down").returncode == 0
    assert [p for p in (supervisor, *descendants) if process_tree.is_running(p)] == []
    log = (home / "logs" / "supervisor.log").read_text()
    assert '"stack_stopped"' in log
