"""The supervisor, with small real processes."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from trace_etl.lite.errors import ServiceFailed
from trace_etl.lite.processes import log_view, process_tree
from trace_etl.lite.processes.record import ServiceRecord
from trace_etl.lite.processes.services import StackService
from trace_etl.lite.processes.supervisor import RestartPolicy, Supervisor
from trace_etl.policy.retry import Backoff

QUICK = RestartPolicy(Backoff.of_seconds(0.05, 0.2), stable_after=3600, start_attempts=3)
# Starts a child, announces its pids, and records that it was asked to stop. The files appear with
# their content, so that a reader never finds an empty one.
SERVICE = """
import os, pathlib, signal, subprocess, sys, time
name, directory = sys.argv[1], pathlib.Path(sys.argv[2])
grandchild = subprocess.Popen(["sleep", "1000"])
def announce(file, pid):
    (directory / (file + ".new")).write_text(str(pid))
    (directory / (file + ".new")).rename(directory / file)
def stop(*_):
    with (directory / "stops").open("a") as stops:
        stops.write(name + chr(10))
    grandchild.kill()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
announce(name + ".grandchild", grandchild.pid)
announce(name + ".up", os.getpid())
while True:
    signal.pause()
"""
IGNORES_SIGTERM = SERVICE.replace("signal.SIGTERM, stop", "signal.SIGTERM, signal.SIG_IGN")
BROKEN = "import sys; print('cannot find my settings', file=sys.stderr); sys.exit(7)"


def service(directory: Path, name: str, code: str = SERVICE, **changes: object) -> StackService:
    def is_up(pid: int) -> bool:
        mark = directory / f"{name}.up"
        return mark.exists() and mark.read_text() == str(pid)

    new_service = StackService(
        name=name,
        argv=(sys.executable, "-S", "-c", code, name, str(directory)),
        environment={"PATH": os.environ["PATH"]},
        is_ready=is_up,
        grace=60.0,
    )
    return replace(new_service, **changes)  # type: ignore[arg-type]


class Bench:
    """A supervisor under test and everything it has published."""

    def __init__(
        self, directory: Path, services: Sequence[StackService], policy: RestartPolicy
    ) -> None:
        self.directory = directory
        self.history: dict[str, list[ServiceRecord]] = {service.name: [] for service in services}
        self.up = asyncio.Event()
        self.events = directory / "supervisor.log"
        self.log = log_view.EventLog(self.events)
        self.supervisor = Supervisor(services, directory, self.log, self.publish, policy)

    def publish(self, records: Sequence[ServiceRecord]) -> None:
        for record in records:
            self.history[record.name].append(replace(record))

    def now(self, name: str) -> ServiceRecord:
        return self.history[name][-1]

    def logged(self, event: str) -> list[dict[str, object]]:
        lines = map(json.loads, self.events.read_text().splitlines())
        return [line for line in lines if line["event"] == event]


@asynccontextmanager
async def supervised(
    directory: Path, *services: StackService, policy: RestartPolicy = QUICK
) -> AsyncIterator[Bench]:
    bench = Bench(directory, services, policy)
    running = asyncio.create_task(bench.supervisor.run(bench.up.set))
    try:
        await eventually(lambda: bench.up.is_set() or running.done())
        if running.done():
            running.result()
        yield bench
    finally:
        bench.supervisor.request_stop()
        with suppress(ServiceFailed):
            await running
        bench.log.close()


async def eventually(condition: Callable[[], object], within: float = 120.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        await asyncio.sleep(0.01)


def read_pid(path: Path) -> int:
    return int(path.read_text())


def runs(pid: int) -> bool:
    try:
        return process_tree.is_running(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


async def test_a_process_starts_after_the_processes_it_needs_are_ready(tmp_path: Path) -> None:
    second = service(tmp_path, "second", after=("first",))
    async with supervised(tmp_path, second, service(tmp_path, "first")) as bench:
        assert bench.now("second").state == "ready"
    ready = [line["service"] for line in bench.logged("service_ready")]
    started = [line["service"] for line in bench.logged("service_started")]
    assert (ready, started) == (["first", "second"], ["first", "second"])


async def test_a_process_that_exits_is_restarted_and_counted(tmp_path: Path) -> None:
    async with supervised(tmp_path, service(tmp_path, "worker")) as bench:
        before = bench.now("worker")
        os.kill(read_pid(tmp_path / "worker.up"), signal.SIGKILL)
        await eventually(lambda: bench.now("worker").restarts == 1)
        await eventually(lambda: bench.now("worker").state == "ready")
        after = bench.now("worker")
    assert after.pid != before.pid
    assert after.last_exit == -signal.SIGKILL


async def test_the_restart_delay_grows_up_to_a_maximum(tmp_path: Path) -> None:
    async with supervised(tmp_path, service(tmp_path, "worker")) as bench:
        for death in range(4):
            await eventually(lambda: bench.now("worker").state == "ready")
            os.kill(bench.now("worker").pid or 0, signal.SIGKILL)
            await eventually(lambda death=death: bench.now("worker").restarts == death + 1)
    waits = [line["restart_in"] for line in bench.logged("service_exited")]
    assert waits == [0.05, 0.1, 0.2, 0.2]


async def test_a_healthy_run_resets_the_restart_delay(tmp_path: Path) -> None:
    policy = RestartPolicy(QUICK.backoff, stable_after=1e-9)
    async with supervised(tmp_path, service(tmp_path, "worker"), policy=policy) as bench:
        for death in range(3):
            await eventually(lambda: bench.now("worker").state == "ready")
            os.kill(bench.now("worker").pid or 0, signal.SIGKILL)
            await eventually(lambda death=death: bench.now("worker").restarts == death + 1)
    waits = [line["restart_in"] for line in bench.logged("service_exited")]
    assert waits == [0.05] * 3


def test_the_restart_delay_resets_after_a_healthy_minute_and_stays_short() -> None:
    policy = RestartPolicy()
    assert policy.failures_after(5, healthy=59.0) == 6
    assert policy.failures_after(5, healthy=60.0) == 1
    assert policy.backoff.seconds(10_000) == 5


async def test_a_process_that_cannot_start_fails_the_start_and_shows_its_log(
    tmp_path: Path,
) -> None:
    good, bad = service(tmp_path, "good"), service(tmp_path, "bad", BROKEN, after=("good",))
    with pytest.raises(ServiceFailed, match=r"bad does not start \(exit code 7\)") as refused:
        async with supervised(tmp_path, good, bad):
            pass
    assert "cannot find my settings" in str(refused.value)
    assert str(tmp_path / "bad.log") in refused.value.remedy
    assert not runs(read_pid(tmp_path / "good.up"))


async def test_a_process_that_is_never_ready_is_killed_and_restarted(tmp_path: Path) -> None:
    pids: set[int] = set()

    def is_never_ready(pid: int) -> bool:
        pids.add(pid)
        return False

    mute = service(tmp_path, "mute", is_ready=is_never_ready, ready_within=0.3)
    with pytest.raises(ServiceFailed, match="mute does not start"):
        async with supervised(tmp_path, mute):
            pass
    assert len(pids) == QUICK.start_attempts
    assert not any(map(runs, pids))


async def test_a_hook_that_fails_is_retried_with_a_new_process(tmp_path: Path) -> None:
    tries: list[int] = []

    def provision() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("not yet")

    async with supervised(tmp_path, service(tmp_path, "db", on_ready=provision)) as bench:
        assert bench.now("db").restarts == 1
    assert [line["error"] for line in bench.logged("service_hook_failed")] == ["OSError('not yet')"]


async def test_processes_stop_in_reverse_order_of_their_dependencies(tmp_path: Path) -> None:
    chain = [
        service(tmp_path, "postgres"),
        service(tmp_path, "dispatcher", after=("postgres",)),
        service(tmp_path, "worker", after=("dispatcher",)),
    ]
    async with supervised(tmp_path, *chain) as bench:
        pass
    assert (tmp_path / "stops").read_text().split() == ["worker", "dispatcher", "postgres"]
    assert bench.now("worker").state == "stopped"


async def test_a_process_that_ignores_the_stop_signal_is_killed_with_its_children(
    tmp_path: Path,
) -> None:
    stubborn = service(tmp_path, "stubborn", IGNORES_SIGTERM, grace=0.2)
    async with supervised(tmp_path, stubborn):
        pids = [read_pid(tmp_path / f"stubborn.{kind}") for kind in ("up", "grandchild")]
        assert all(map(runs, pids))
    await eventually(lambda: not any(map(runs, pids)))


async def test_a_second_stop_request_kills_immediately(tmp_path: Path) -> None:
    stubborn = service(tmp_path, "stubborn", IGNORES_SIGTERM, grace=3600.0)
    async with supervised(tmp_path, stubborn) as bench:
        pids = [read_pid(tmp_path / f"stubborn.{kind}") for kind in ("up", "grandchild")]
        bench.supervisor.request_stop()
        bench.supervisor.request_stop()
        await eventually(lambda: not any(map(runs, pids)))


async def test_children_of_a_crashed_process_are_killed(tmp_path: Path) -> None:
    async with supervised(tmp_path, service(tmp_path, "worker")) as bench:
        orphan = read_pid(tmp_path / "worker.grandchild")
        os.kill(read_pid(tmp_path / "worker.up"), signal.SIGKILL)
        await eventually(lambda: bench.now("worker").restarts == 1)
        await eventually(lambda: not runs(orphan))


async def test_a_full_disk_does_not_stop_the_supervisor(tmp_path: Path) -> None:
    async with supervised(tmp_path, service(tmp_path, "worker")) as bench:

        def refuse(_: Sequence[ServiceRecord]) -> None:
            raise OSError(28, "No space left on device")

        first = read_pid(tmp_path / "worker.up")
        bench.supervisor.publish = refuse
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: read_pid(tmp_path / "worker.up") != first)
    assert bench.logged("record_not_written")


@pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's parent-death signal")
async def test_a_killed_parent_stops_its_children(tmp_path: Path) -> None:
    code = (
        "import signal, subprocess, sys; from trace_etl.lite.processes import process_tree\n"
        f"subprocess.Popen(process_tree.bound([sys.executable, '-S', '-c', {SERVICE!r}, 'x', "
        f"{str(tmp_path)!r}]), start_new_session=True)\nsignal.pause()"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    try:
        await eventually((tmp_path / "x.up").exists)
    finally:
        parent.kill()
        await parent.wait()
    await eventually(lambda: not runs(read_pid(tmp_path / "x.up")))
    assert (tmp_path / "stops").read_text() == "x\n", "the child must get SIGTERM, not SIGKILL"
