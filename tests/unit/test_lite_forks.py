"""The fork server of a stack, with small real services."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.waiting import eventually
from trace_etl import landlock
from trace_etl.lite.processes import process_tree
from trace_etl.lite.processes.fork_server import ServiceStart
from trace_etl.lite.processes.forks import ForkedProcess, ServiceForks, can_fork, make_environment

pytestmark = pytest.mark.skipif(not can_fork(), reason="this system starts services one by one")

# It reports what it sees, and waits for a signal. `exit_code` ends it at once.
SERVICE = """
import builtins, gc, json, os, pathlib, signal, sys
imported_by = [os.getpid()]
def main():
    here = pathlib.Path.cwd()
    def stop(*_):
        print("stopped", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, stop)
    can_read = {path: os.access(path, os.R_OK) and _can_open(path) for path in os.environ.get("PATHS", "").split()}
    state = {
        "imported_by": imported_by, "parent": os.getppid(), "session": os.getsid(0), "argv": sys.argv,
        "environment": dict(os.environ), "here": str(here), "collects": gc.isenabled(), "can_read": can_read,
        "descriptors": sorted(os.listdir("/proc/self/fd")), "is_main": sys.orig_argv,
    }
    print("to the log", file=sys.stderr)
    (here / "state.new").write_text(json.dumps(state))
    (here / "state.new").rename(here / "state")
    if "EXIT_CODE" in os.environ:
        sys.exit(int(os.environ["EXIT_CODE"]))
    while True:
        signal.pause()
def _can_open(path):
    try:
        open(path).close()
    except OSError:
        return False
    return True
"""
THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()\n"


class Bench:
    """A fork server and the services that it started, each in a directory of its own."""

    def __init__(self, directory: Path, modules: Sequence[str]) -> None:
        self.directory = directory
        self.log = directory / "fork_server.log"
        inherited = {"PATH": os.environ["PATH"], "PYTHONPATH": str(directory)}
        environment = make_environment(inherited, directory)
        self.forks = ServiceForks(modules, environment, self.log)

    def describe(self, name: str, environment: Mapping[str, str] | None = None) -> ServiceStart:
        (self.directory / name).mkdir(exist_ok=True)
        return ServiceStart(
            argv=[sys.executable, "-P", "-m", "small_service"],
            environment={"PATH": os.environ["PATH"], "NAME": name, **(environment or {})},
            directory=str(self.directory / name),
            sent=signal.SIGTERM,
            allowed=None,
        )

    async def start(self, start: ServiceStart) -> ForkedProcess:
        (Path(start.directory) / "state").unlink(missing_ok=True)
        with (Path(start.directory) / "log").open("ab") as log:
            return await self.forks.start(start, log.fileno())

    async def read_state(self, name: str) -> dict[str, Any]:
        """Wait until the service has reported its state."""
        path = self.directory / name / "state"
        await asyncio.to_thread(eventually, path.exists, f"{name} has reported its state")
        return json.loads(path.read_text())


@asynccontextmanager
async def open_bench(directory: Path, code: str = SERVICE) -> AsyncIterator[Bench]:
    package = directory / "small_service"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(code)
    bench = Bench(directory, ["small_service"])
    try:
        yield bench
    finally:
        bench.forks.close()


def find_server(process: ForkedProcess) -> psutil.Process:
    parent = psutil.Process(process.pid).parent()
    assert parent is not None
    return parent


async def test_services_share_one_import(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        first, second = [await bench.start(bench.describe(name)) for name in ("first", "second")]
        states = [await bench.read_state(name) for name in ("first", "second")]
        server = find_server(first).pid
        assert [state["imported_by"] for state in states] == [[server], [server]]
        assert first.pid != second.pid and states[0]["collects"]


async def test_a_service_has_a_session_and_a_directory_of_its_own(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        process = await bench.start(bench.describe("first"))
        state = await bench.read_state("first")
        assert state["session"] == process.pid
        assert state["here"] == str(tmp_path / "first")
        assert (tmp_path / "first" / "log").read_text() == "to the log\n"
        assert (tmp_path / "fork_server.log").read_text() == ""


async def test_a_service_has_its_environment_only_and_shows_it(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        start = bench.describe("first", {"TRACE_HOME": "/home of the stack", "EMPTY": ""})
        process = await bench.start(start)
        state = await bench.read_state("first")
        assert state["environment"] == start.environment
        shown = psutil.Process(process.pid)
        assert shown.environ() == start.environment
        assert shown.cmdline() == start.argv


async def test_a_service_has_no_descriptor_of_the_fork_server_or_of_another_service(
    tmp_path: Path,
) -> None:
    async with open_bench(tmp_path) as bench:
        for name in ("first", "second", "third"):
            await bench.start(bench.describe(name))
            state = await bench.read_state(name)
            listing = 1  # of the directory itself
            assert len(state["descriptors"]) == 3 + listing, state["descriptors"]


async def test_the_exit_code_is_reported(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        failing = await bench.start(bench.describe("failing", {"EXIT_CODE": "7"}))
        assert (await failing.wait(), failing.returncode) == (7, 7)
        failing.send_signal(signal.SIGKILL)  # its pid may belong to another process now
        killed, stopped = [await bench.start(bench.describe(name)) for name in ("a", "b")]
        await bench.read_state("a")
        await bench.read_state("b")
        killed.send_signal(signal.SIGKILL)
        stopped.send_signal(signal.SIGTERM)
        assert (await killed.wait(), await stopped.wait()) == (-signal.SIGKILL, 0)
        assert (tmp_path / "b" / "log").read_text().endswith("stopped\n")


async def test_a_service_that_cannot_start_says_why_in_its_log(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        start = bench.describe("first")
        (tmp_path / "first").rmdir()
        with (tmp_path / "log").open("wb") as log:
            process = await bench.forks.start(start, log.fileno())
        assert await process.wait() == 1
        assert "FileNotFoundError" in (tmp_path / "log").read_text()


@pytest.mark.skipif(not landlock.version(), reason="the kernel has no Landlock")
async def test_landlock_restricts_a_service(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for file in (own, other):
        file.write_text("a secret")
    async with open_bench(tmp_path) as bench:
        asked = f"{own} {other}"
        start = bench.describe("first", {"PATHS": asked})
        allowed = {"read": [str(own), "/usr", "/proc"], "write": [start.directory]}
        await bench.start(replace(start, allowed=allowed))
        assert (await bench.read_state("first"))["can_read"] == {str(own): True, str(other): False}
        await bench.start(bench.describe("second", {"PATHS": asked}))
        assert (await bench.read_state("second"))["can_read"] == {str(own): True, str(other): True}


async def test_services_end_with_the_fork_server_and_their_next_starts_share_another(
    tmp_path: Path,
) -> None:
    names = ("first", "second", "third")
    async with open_bench(tmp_path) as bench:
        services = [await bench.start(bench.describe(name)) for name in names]
        server = find_server(services[0])
        for name in names:
            await bench.read_state(name)
        server.kill()
        ended = [await service.wait() for service in services]
        assert ended == [-signal.SIGKILL] * len(names)
        again = await asyncio.gather(*(bench.start(bench.describe(name)) for name in names))
        for name in names:
            await bench.read_state(name)
        [new] = {find_server(service).pid for service in again}
        assert new != server.pid


async def test_the_end_of_a_service_is_noticed_while_the_fork_server_hangs(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        process = await bench.start(bench.describe("first"))
        await bench.read_state("first")
        server = find_server(process)
        server.suspend()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == -signal.SIGKILL  # the exit code is unknown
        bench.forks.close()
        assert not process_tree.is_running(server)


async def test_closing_the_fork_server_stops_its_services(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        process = await bench.start(bench.describe("first"))
        await bench.read_state("first")
        service = psutil.Process(process.pid)
        bench.forks.close()
        await process.wait()
        assert not process_tree.is_running(service)


async def test_a_module_that_starts_a_thread_is_imported_by_each_service(tmp_path: Path) -> None:
    async with open_bench(tmp_path, THREAD + SERVICE) as bench:
        for name in ("first", "second"):
            process = await bench.start(bench.describe(name))
            assert (await bench.read_state(name))["imported_by"] == [process.pid]


def test_the_fork_server_gets_no_settings_and_no_secrets(tmp_path: Path) -> None:
    secret = {"TRACE_SECRET_KEY": "x", "AWS_SECRET_ACCESS_KEY": "x", "TRACE_STATE_DSN": "x"}
    made = make_environment({**secret, "PYTHONPATH": "/p", "TRACE_HOME": "/other"}, tmp_path)
    assert not {*secret} & {*made}
    assert (made["PYTHONPATH"], made["TRACE_HOME"]) == ("/p", str(tmp_path))
