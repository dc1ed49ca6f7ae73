"""Programs in three languages that use up memory, processes and output, or try to outlive their end."""

import secrets
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from support.waiting import eventually
from trace_etl.sandbox import bubblewrap
from trace_etl.sandbox.bubblewrap import BUNDLE, Shown
from trace_etl.sandbox.limits import MIB, Limits
from trace_etl.sandbox.process import Layers, Program, SandboxedProcess

_HOSTILE = Path(__file__).parents[1] / "support" / "hostile"
_LIMITS = Limits(
    memory_bytes=256 * MIB, processes=20, temporary_bytes=8 * MIB, output_bytes=100_000
)
_LARGE = replace(_LIMITS, reserves_memory=True)
pytestmark = pytest.mark.usefixtures("sandbox")
in_each_language = pytest.mark.parametrize("language", ["python", "node", "native"])


def make_program(language: str, bomb: str, directory: Path) -> Program:
    files = [Shown(_HOSTILE, BUNDLE)]
    if language == "python":
        command = [bubblewrap.PYTHON, "-I", f"{BUNDLE}/bombs.py", bomb]
        return Program(command, files=files, limits=_LIMITS)
    if language == "node":
        command = [bubblewrap.NODE, f"{BUNDLE}/bombs.mjs", bomb]
        return Program(command, files=files, limits=_LARGE, uses_node=True)
    compiler, program = shutil.which("cc"), directory / "bombs"
    if compiler is None:
        pytest.skip("needs a C compiler")
    subprocess.run([compiler, "-w", "-o", str(program), _HOSTILE / "bombs.c"], check=True)
    return Program([f"{BUNDLE}/bombs", bomb], files=[Shown(program, f"{BUNDLE}/bombs")])


def list_processes(marker: str) -> list[int]:
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            is_wanted = process.environ().get("MARKER") == marker
            found += [process.pid] if is_wanted and process.status() != "zombie" else []
        except (psutil.Error, OSError):
            continue
    return found


@in_each_language
@pytest.mark.parametrize("bomb", ["fill_memory_in_children", "fill_shared_mappings"])
def test_memory_of_all_processes_counts(language: str, bomb: str, tmp_path: Path) -> None:
    marker = secrets.token_hex(8)
    program = replace(make_program(language, bomb, tmp_path), environment={"MARKER": marker})
    limits = replace(program.limits, memory_bytes=256 * MIB, processes=100)
    program = replace(program, limits=limits)
    assert SandboxedProcess(program).wait().reason == "memory"
    eventually(lambda: not list_processes(marker))


@in_each_language
def test_a_fork_bomb_stays_within_its_limit_and_ends_at_once(language: str, tmp_path: Path) -> None:
    marker = secrets.token_hex(8)
    program = make_program(language, "fork_without_end", tmp_path)
    limits = replace(program.limits, processes=20, memory_bytes=2048 * MIB)
    process = SandboxedProcess(replace(program, environment={"MARKER": marker}, limits=limits))
    # A process of Node has about ten threads, which count, too.
    reached = 2 if language == "node" else 15
    eventually(lambda: len(list_processes(marker)) >= reached, "the bomb has many processes")
    assert len(list_processes(marker)) <= 20
    process.kill()
    assert process.wait().reason == "killed"
    eventually(lambda: not list_processes(marker))


@in_each_language
def test_a_flood_of_output_is_cut(language: str, tmp_path: Path) -> None:
    read, is_flooded = 0, threading.Event()

    def count(part: bytes) -> None:
        nonlocal read
        read += len(part)
        if read >= 100_000:  # the rest is dropped
            is_flooded.set()

    program = make_program(language, "print_without_end", tmp_path)
    program = replace(program, limits=replace(program.limits, output_bytes=100_000))
    process = SandboxedProcess(program, on_output=count)
    assert is_flooded.wait(300)
    process.kill()
    ended = process.wait()
    assert (ended.reason, len(ended.output), ended.is_truncated) == ("killed", 100_000, True)


@in_each_language
def test_a_program_that_ignores_signals_and_leaves_its_session_ends(
    language: str, tmp_path: Path
) -> None:
    marker, has_printed = secrets.token_hex(8), threading.Event()
    program = make_program(language, "survive_its_end", tmp_path)
    program = replace(program, environment={"MARKER": marker})
    process = SandboxedProcess(program, on_output=lambda part: has_printed.set())
    eventually(lambda: len(list_processes(marker)) > 1 and has_printed.is_set(), "it has children")
    process.kill()
    assert process.wait().reason == "killed"
    eventually(lambda: not list_processes(marker))


def test_memory_in_sockets_counts(tmp_path: Path) -> None:
    marker = secrets.token_hex(8)
    program = replace(
        make_program("python", "fill_sockets", tmp_path), environment={"MARKER": marker}
    )
    assert SandboxedProcess(program).wait().reason == "memory"
    assert SandboxedProcess(program, Layers(cgroup=False)).wait().reason == "memory"
    eventually(lambda: not list_processes(marker))


@pytest.mark.parametrize("layers", [Layers(), Layers(seccomp=False)])
def test_the_call_filter_keeps_the_buffers_of_sockets(layers: Layers) -> None:
    code = """
import socket
ours, _ = socket.socketpair()
before = [ours.getsockopt(socket.SOL_SOCKET, size) for size in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
for size in (socket.SO_SNDBUF, socket.SO_RCVBUF):
    ours.setsockopt(socket.SOL_SOCKET, size, 10_000)
ours.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
after = [ours.getsockopt(socket.SOL_SOCKET, size) for size in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
print(before == after, ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
"""
    program = Program([bubblewrap.PYTHON, "-I", "-c", code], limits=_LIMITS)
    ended = SandboxedProcess(program, layers).wait()
    assert ended.output.decode().split() == [str(layers.seccomp), "1"]
