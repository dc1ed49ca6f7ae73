"""The spawner answers for every program that it is asked to start, also if it cannot."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trace_etl.sandbox import spawner as module
from trace_etl.sandbox.errors import SandboxUnavailable
from trace_etl.sandbox.process import Program
from trace_etl.sandbox.spawner import RemoteProcess, Spawner, SpawnerServer

PROGRAM = Program(["/bin/true"])


@pytest.fixture
def spawner(tmp_path: Path) -> Iterator[Spawner]:
    ours, theirs = socket.socketpair()
    with theirs:
        thread = threading.Thread(target=SpawnerServer(theirs, tmp_path).serve)
        thread.start()
        made = Spawner(ours)
        yield made
        made.close()
        thread.join()


def start(spawner: Spawner) -> RemoteProcess:
    process = spawner.start(PROGRAM, lambda part: None)
    assert process._answered.wait(120), "the spawner does not answer"
    return process


def test_a_processor_without_a_call_filter_is_named(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(SandboxUnavailable, match="riscv64; use a machine with x86-64 or ARM64"):
        start(spawner).wait()


def test_a_defect_is_answered_and_the_next_program_is_served(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "asdict", lambda program: {})
        with pytest.raises(OSError, match="the sandbox failed: KeyError"):
            start(spawner).wait()
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(SandboxUnavailable):
        start(spawner).wait()
