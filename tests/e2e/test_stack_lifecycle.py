"""Start, stop and recovery of the stack with stand-ins for the services."""

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from support.cli import run_command, start_command
from support.waiting import eventually
from trace_etl.lite import stack as lite
from trace_etl.lite import status as checks
from trace_etl.lite.credentials import passwords
from trace_etl.lite.home import Home
from trace_etl.lite.postgres import databases
from trace_etl.lite.postgres.account import Account
from trace_etl.lite.postgres.server import Server
from trace_etl.lite.processes import probes, process_tree

SUPPORT = Path(__file__).parents[1] / "support"
FORK_SERVER = "trace_etl.lite.processes.fork_server"
SERVICES = {
    *("postgres", "dispatcher", "worker", "functions", "sink", "query", "scheduler", "console")
}


class Stack:
    """One stack in the foreground, as in a user's terminal."""

    def __init__(self, home: Path, environment: dict[str, str], **options: object) -> None:
        self.home = home
        self.log = home.with_name(f"{home.name}.out")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, SUPPORT / "services/stub_stack.py", home, json.dumps(options)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **environment},
            )
        assert self.process.stdout
        self.first_line = self.process.stdout.readline().strip()

    def end(self, sent: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait for the end of the process, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sent)
        assert self.process.stdout
        if not self.process.stdout.closed:
            self.first_line += self.process.stdout.read().rstrip()
            self.process.stdout.close()
        return self.process.wait()

    @property
    def connection(self) -> dict[str, Any]:
        return json.loads((self.home / "connection.json").read_text())

    def pid(self, service: str) -> int:
        records = json.loads((self.home / "run" / "stack.json").read_text())
        return next(record["pid"] for record in records if record["name"] == service)

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """One home for all tests, as a user has. Each test starts from the state of the previous one."""
    made = tmp_path_factory.mktemp("stack") / "home"
    yield made
    lite.purge(Home(made))


@contextmanager
def running(
    home: Path, environment: dict[str, str] | None = None, **options: object
) -> Generator[Stack]:
    stack = Stack(home, environment or {}, **options)
    try:
        yield stack
    finally:
        stack.end()


def trace(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process. One that could start a stack has a process of its own: `start`."""
    return run_command(*words, TRACE_HOME=str(home))


def start(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return start_command("up", *words, TRACE_HOME=str(home))


def prepare(home: Path) -> None:
    """Start and stop a stack in the home, unless a test before did so."""
    if not (home / "config.json").exists():
        with running(home) as stack:
            assert stack.first_line == "up"


def find_port(home: Path, service: str) -> int:
    """Return the port of a service that the home remembers."""
    return int(json.loads((home / "config.json").read_text())["ports"][service]["port"])


def still_running(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process_tree.is_running(process)]


def test_a_stack_starts_reports_its_status_and_stops_completely(home: Path) -> None:
    with running(home) as stack:
        assert stack.first_line == "up"
        count = len(SERVICES)
        reported = re.findall(r"ready: (\d+) of (\d+)", stack.log.read_text())
        assert [int(ready) for ready, _ in reported] == sorted(int(ready) for ready, _ in reported)
        assert reported[0] == ("0", str(count)) and reported[-1] == (str(count), str(count))
        status = trace(home, "status", "--json")
        assert status.returncode == 0, status.stdout
        found = json.loads(status.stdout)
        assert {service["name"] for service in found["parts"]} == SERVICES
        assert {service["health"] for service in found["parts"]} == {"healthy"}
        assert found["supervisor_pid"] == stack.process.pid
        connection = stack.connection
        assert {service["spark"] for service in found["parts"]} == {"ready", None}
        for name in ("api_url", "internal_url", "query_url"):
            assert probes.is_healthy(connection[name], connection["ca"])
        descendants = stack.descendants()
        assert len(descendants) > len(SERVICES)
        assert stack.end() == 0
    assert still_running(descendants) == []
    assert not (home / "connection.json").exists()
    assert trace(home, "status").returncode == 3


@pytest.fixture(scope="class")
def shared(home: Path) -> Generator[Stack]:
    environment = {
        "TRACE_STATE_DSN": "mine",
        "TRACE_SLOTS": "7",
        "PGPASSWORD": "of another server",
        "PGHOSTADDR": "192.0.2.1",
        "AWS_SECRET_ACCESS_KEY": "of another program",
    }
    with running(home, environment) as stack:
        assert stack.first_line == "up"
        yield stack


class TestRunningStack:
    """Tests that leave a stack running and healthy share one."""

    def test_only_the_owner_can_read_the_files_in_the_home(self, home: Path, shared: Stack) -> None:
        paths = [home, *(path for path in home.rglob("*") if not path.is_symlink())]
        open_to_others = [p for p in paths if stat.S_IMODE(p.stat().st_mode) & 0o077]
        assert open_to_others == []
        assert {path.name for path in home.iterdir()} >= {
            "tls",
            "keys",
            "tokens",
            "credentials",
            "postgres",
        }

    def test_no_secret_is_in_a_command_line_or_environment(self, home: Path, shared: Stack) -> None:
        secrets = list(passwords.read(Home(home).pgpass).values())
        services = Home(home).service_tokens.values()
        tokens = (Home(home).worker_token, Home(home).user_token, *services)
        secrets += [path.read_text().strip() for path in tokens]
        assert len(secrets) == 10
        for process in [psutil.Process(shared.process.pid), *shared.descendants()]:
            shown = " ".join([*process.cmdline(), *process.environ().values()])
            assert not [secret for secret in secrets if secret in shown]

    def test_a_process_gets_only_its_own_settings(self, home: Path, shared: Stack) -> None:
        worker = psutil.Process(shared.pid("worker")).environ()
        dispatcher = psutil.Process(shared.pid("dispatcher")).environ()
        query = psutil.Process(shared.pid("query")).environ()
        assert "TRACE_STATE_DSN" not in worker
        assert worker["TRACE_SLOTS"] == "7"
        assert "user=trace_queue" in worker["TRACE_QUEUE_DSN"]
        assert "user=trace_state" in dispatcher["TRACE_STATE_DSN"]
        assert "user=trace_reader" in query["TRACE_STATE_DSN"]
        assert "TRACE_WORKER_TOKEN_FILE" not in dispatcher

    def test_no_process_gets_the_credentials_of_other_servers(
        self, home: Path, shared: Stack
    ) -> None:
        for service in SERVICES:
            environment = psutil.Process(shared.pid(service)).environ()
            assert not {"PGPASSWORD", "PGHOSTADDR", "AWS_SECRET_ACCESS_KEY"} & set(environment)

    def test_starting_twice_reports_the_running_stack_and_what_to_do(
        self, home: Path, shared: Stack
    ) -> None:
        with running(home) as second:
            assert second.process.wait() == 1
            assert second.first_line.startswith("already_running")
            assert str(shared.process.pid) in second.first_line
            again = start(home, "--detach")
            assert again.returncode == 0
            assert "trace down" in again.stderr
            different = start(home, "--detach", "--rpc-url", "http://127.0.0.1:1")
            assert different.returncode == 1
            assert trace(home, "status").returncode == 0

    def test_a_killed_process_is_restarted_and_status_counts_the_restart(
        self, home: Path, shared: Stack
    ) -> None:
        before = shared.pid("query")
        os.kill(before, signal.SIGKILL)
        eventually(lambda: shared.pid("query") not in (before, None))
        eventually(lambda: checks.check(Home(home)).state == "healthy")
        assert trace(home, "status").returncode == 0
        found = json.loads(trace(home, "status", "--json").stdout)
        restarts = {service["name"]: service["restarts"] for service in found["parts"]}
        assert restarts == {**dict.fromkeys(SERVICES, 0), "query": 1}

    def test_status_is_degraded_when_a_process_does_not_answer(
        self, home: Path, shared: Stack
    ) -> None:
        query = psutil.Process(shared.pid("query"))
        query.suspend()
        try:
            status = trace(home, "status", "--json")
        finally:
            query.resume()
        assert status.returncode == 1
        services = {
            service["name"]: service["health"] for service in json.loads(status.stdout)["parts"]
        }
        assert services == {**dict.fromkeys(SERVICES, "healthy"), "query": "silent"}

    def test_a_killed_postgres_is_restarted_with_every_row(self, home: Path, shared: Stack) -> None:
        port = find_port(home, "postgres")
        dsns = databases.dsns(Server(port, Home(home).pgpass))
        with psycopg.connect(dsns.data) as conn:
            conn.execute("CREATE TABLE IF NOT EXISTS kept AS SELECT 7 AS n")
        before = shared.pid("postgres")
        os.kill(before, signal.SIGKILL)
        eventually(lambda: shared.pid("postgres") not in (before, None))
        eventually(lambda: checks.check(Home(home)).state == "healthy")
        assert trace(home, "status").returncode == 0
        with psycopg.connect(dsns.data) as conn:
            assert conn.execute("SELECT n FROM kept").fetchone() == (7,)

    def test_the_services_of_a_killed_fork_server_are_restarted(
        self, home: Path, shared: Stack
    ) -> None:
        before = {name: shared.pid(name) for name in SERVICES}
        forked = {name: psutil.Process(before[name]) for name in SERVICES - {"postgres"}}
        [server] = [p for p in shared.descendants() if FORK_SERVER in p.cmdline()]
        server.kill()
        eventually(lambda: all(shared.pid(name) not in (before[name], None) for name in forked))
        eventually(lambda: checks.check(Home(home)).state == "healthy")
        assert shared.pid("postgres") == before["postgres"]
        assert still_running([*forked.values()]) == []


def read_log(log: Path) -> list[list[str]]:
    """Return the words of the log's lines, without progress and the line that is still being written."""
    lines = log.read_text().split("\n")[:-1]
    return [line.split() for line in lines if not line.startswith("ready: ")]


def log_sources(log: Path) -> set[str]:
    """Return the names of the log sources so far."""
    return {words[1] for words in read_log(log)}


def test_the_terminal_shows_one_log_of_all_processes(home: Path) -> None:
    ctrl_c = signal.SIGINT
    if signal.getsignal(ctrl_c) is signal.SIG_IGN:
        ctrl_c = signal.SIGTERM  # background processes ignore Ctrl-C
    expected_sources = SERVICES - {"postgres"} | {"supervisor"}
    with running(home) as stack:
        eventually(
            lambda: log_sources(stack.log) >= expected_sources, "every process has logged a line"
        )
        assert stack.end(ctrl_c) == 0
    lines = read_log(stack.log)
    assert log_sources(stack.log) == expected_sources
    assert all(len(line[0].split(":")) == 3 for line in lines)
    events = [line[2] for line in lines if line[1] == "supervisor"]
    assert events[-2:] == ["stack_stopping", "stack_stopped"]
    assert lines[-1][2] == "stack_stopped"
    assert '{"event": "stub_started"' in (home / "logs" / "worker.log").read_text()


def test_a_home_of_the_last_release_is_upgraded_at_its_next_start(home: Path) -> None:
    new = Home(home)
    prepare(home)
    known = passwords.read(new.pgpass)
    token, public = new.worker_token.read_text(), next(new.user_public_keys.iterdir()).name
    new.pgpass.rename(home / "pgpass")
    shutil.rmtree(home / "credentials")
    (home / "worker").write_text(token)
    shutil.rmtree(home / "tokens" / "workers")
    (home / "worker").rename(home / "tokens" / "worker")
    (new.user_public_keys / public).rename(new.user_keys / public)
    new.user_public_keys.rmdir()
    if os.geteuid() == 0:
        Account(65534, 65534).take(home.joinpath("postgres").resolve() / "data")
    with running(home) as stack:
        assert stack.first_line == "up"
        port = find_port(home, "postgres")
        passfile = new.credentials("dispatcher") / "pgpass"
        with psycopg.connect(databases.dsns(Server(port, passfile)).state):
            pass
        assert not (home / "pgpass").exists() and not (home / "tokens" / "worker").exists()
        assert new.worker_token.read_text() == token
        assert passwords.read(new.pgpass) == known
        assert {path.name for path in new.user_public_keys.iterdir()} == {public}
        assert list(new.user_keys.glob("*.pub.pem")) == []


def test_orphans_of_a_killed_supervisor_are_shown_and_stopped(home: Path) -> None:
    with running(home, {"STUB_IGNORES_SIGTERM": "worker,query"}) as stack:
        connection, descendants = stack.connection, stack.descendants()
        orphans = [stack.pid("worker"), stack.pid("query")]
        others = [p for p in descendants if p.name() != "sleep" and p.pid not in orphans]
        stack.end(signal.SIGKILL)
        eventually(lambda: still_running(others) == [], "the others notice it and end")
        status = trace(home, "status")
        assert status.returncode == 3
        assert all(str(pid) in status.stdout for pid in orphans)
        assert "trace down" in status.stdout
    with running(home, {"STUB_IGNORES_SIGTERM": "worker"}) as stack:
        assert stack.first_line == "up"
        assert still_running(descendants) == []
        assert '"orphans_stopped"' in (home / "logs" / "supervisor.log").read_text()
        again, descendants = stack.connection, stack.descendants()
        kept = {"api_url", "internal_url", "query_url", "ca"}
        assert {name: again[name] for name in kept} == {name: connection[name] for name in kept}
        stack.end(signal.SIGKILL)
        assert trace(home, "down").returncode == 0
        assert still_running(descendants) == []


def test_purge_deletes_the_files_of_the_stack_and_no_others(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running(home):
        directory = (home / "postgres").resolve()
        (home / "mine.txt").write_text("not yours")
    assert trace(home, "down", "--purge").returncode == 1, "purge asks for confirmation"
    assert directory.exists()
    assert trace(home, "down", "--purge", "--yes").returncode == 0
    assert not directory.exists()
    assert [path.name for path in home.iterdir()] == ["mine.txt"]


def test_stacks_in_two_homes_do_not_affect_each_other_and_down_stops_one(
    home: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other home"
    try:
        with running(home) as one, running(other) as two:
            assert (one.first_line, two.first_line) == ("up", "up")
            first, second = one.connection, two.connection
            assert first["api_url"] != second["api_url"]
            assert not probes.is_healthy(first["api_url"], second["ca"])
            descendants = two.descendants()
            stopped = trace(other, "down")
            assert (stopped.returncode, stopped.stdout) == (0, "Stopped.\n")
            assert two.process.wait() == 0
            assert still_running(descendants) == []
            assert trace(home, "status").returncode == 0
            assert trace(other, "status").returncode == 3
            nothing = trace(other, "down")
            assert nothing.returncode == 0
            assert nothing.stdout.startswith("No stack was running")
    finally:
        lite.purge(Home(other))


def test_a_port_in_use_is_replaced_unless_the_user_chose_it(home: Path) -> None:
    prepare(home)
    port = find_port(home, "api")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        with running(home) as stack:
            assert stack.first_line == "up"
            assert not stack.connection["api_url"].endswith(f":{port}")
        with running(home, ports={"api": port}) as stack:
            assert stack.process.wait() == 1
            stack.end()
            taken = f"port_taken: port {port} (api) is taken by "
            assert stack.first_line.startswith(taken)
            assert f"(pid {os.getpid()})" in stack.first_line
            assert "--api-port" in stack.first_line


def test_rpc_endpoints_are_remembered_and_several_workers_are_separate_processes(
    home: Path,
) -> None:
    with running(home, rpc_urls=["http://127.0.0.1:1", "base=http://127.0.0.1:2"]):
        pass
    with running(home, workers=2) as stack:
        first, second = (psutil.Process(stack.pid(f"worker-{n}")).environ() for n in (1, 2))
    pools = {"default": ["http://127.0.0.1:1"], "base": ["http://127.0.0.1:2"]}
    assert json.loads(first["TRACE_RPC_POOLS"]) == pools
    for name in ("TRACE_WORKER_ID", "TRACE_READY_FILE", "TRACE_SPARK_DIR"):
        assert first[name] != second[name]


def test_an_unwritable_home_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = trace(tmp_path / "file" / "home", "up", "--detach")
    assert refused.returncode == 1
    assert str(tmp_path / "file") in refused.stderr
    assert "TRACE_HOME" in refused.stderr
    assert trace(tmp_path / "file" / "home", "status").returncode == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_home_of_another_user_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    refused = trace(theirs, "up", "--detach")
    assert refused.returncode == 1
    assert "belongs to another user" in refused.stderr
    assert list(theirs.iterdir()) == []


@pytest.fixture
def full_disk(tmp_path: Path) -> Generator[Path]:
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", directory], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("cannot mount a small disk here")
    yield directory
    subprocess.run(["umount", directory], check=True)


def test_a_full_disk_is_reported_before_anything_starts(full_disk: Path) -> None:
    refused = trace(full_disk / "home", "up", "--detach")
    assert refused.returncode == 1
    assert "is full" in refused.stderr
    assert "what to do: free at least" in refused.stderr


def test_a_first_start_on_a_taken_port_leaves_nothing_behind(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        for mode in (["--detach"], []):
            refused = start(tmp_path / "new", *mode, "--api-port", port)
            assert refused.returncode == 1
            assert f"port {port} (api) is taken" in refused.stderr
            assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "run"),
    [
        (["--rpc-url", "ftp://x"], start),  # the process of the stack refuses it
        (["--api-port", "70000"], lambda home, *words: trace(home, "up", *words)),
        (["--workers", "0"], lambda home, *words: trace(home, "up", *words)),
    ],
    ids=["--rpc-url", "--api-port", "--workers"],
)
def test_an_invalid_option_is_reported_and_leaves_nothing_behind(
    tmp_path: Path, words: list[str], run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    home = tmp_path / "new"
    for mode in (["--detach"], []):
        refused = run(home, *mode, *words)
        assert refused.returncode != 0
        assert words[0] in refused.stderr
        assert not home.exists()
    home.mkdir()
    (home / "mine.txt").write_text("x")
    assert run(home, "--detach", *words).returncode != 0
    assert (home / "mine.txt").read_text() == "x"
    assert trace(home, "status").returncode == 3
