"""Hostile programs in the sandbox. Real processes, namespaces and limits."""

import ctypes
import json
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.waiting import eventually
from trace_etl import landlock
from trace_etl.sandbox import bubblewrap, cgroups, process_tree, uids
from trace_etl.sandbox.broker.strict_http import listen_at
from trace_etl.sandbox.bubblewrap import BUNDLE, SOCKETS, Shown
from trace_etl.sandbox.errors import SandboxUnavailable
from trace_etl.sandbox.limits import MIB, Limits
from trace_etl.sandbox.node import find_node
from trace_etl.sandbox.private_view import make_view, require_reachable
from trace_etl.sandbox.process import Ended, Layers, Program, SandboxedProcess
from trace_etl.sandbox.spawner import Spawner, launch_spawner
from trace_etl.sandbox.uids import reserve_uid

_HOSTILE = Path(__file__).parents[1] / "support" / "hostile"
_LIMITS = Limits(
    memory_bytes=256 * MIB,
    processes=20,
    temporary_bytes=8 * MIB,
    temporary_files=500,
    wall_seconds=120,
    output_bytes=100_000,
)
_ALL_LAYERS = Layers()
_IN_PYTHON, _IN_NODE, _NATIVE = 72, 48, 76  # attacks
_CREATE, _REMOVE = 0o1000, 0  # of System V objects
_IS_ROOT = os.geteuid() == 0
pytestmark = pytest.mark.usefixtures("sandbox")


@pytest.fixture
def targets(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What the attacks look for on the host."""
    secret = tmp_path / "secret"
    canary = secrets.token_hex(16)
    launcher = subprocess.Popen(["sleep", "infinity"], env={"TRACE_CANARY": canary})
    secret.write_text("password")
    name = secrets.token_hex(8)
    with (
        system_v_objects() as key,
        socket.create_server(("127.0.0.1", 0)) as server,
        listening(f"\0{name}"),
        listening(str(tmp_path / "socket")),
        ended_later(launcher),
    ):
        yield {
            "port": server.getsockname()[1],
            "listeners": list_listeners(),
            "ports": ",".join({str(port) for _, port in list_listeners()}),
            "reversed_canary": canary[::-1],
            "abstract": name,
            "socket": str(tmp_path / "socket"),
            "secret": str(secret),
            "directory": str(tmp_path),
            "pid": os.getpid(),
            "temporary_bytes": _LIMITS.temporary_bytes,
            "temporary_files": _LIMITS.temporary_files,
            "memory_bytes": _LIMITS.memory_bytes,
            "processes": _LIMITS.processes,
            "file_bytes": _LIMITS.file_bytes,
            "open_files": _LIMITS.open_files,
            "inodes_are_limited": _IS_ROOT,
            "inodes": int(_IS_ROOT),
            "ipc_key": key,
            "host": socket.gethostname(),
            "token": "of nobody",
        }


@contextmanager
def ended_later(process: subprocess.Popen[bytes]) -> Iterator[None]:
    with process:
        try:
            yield
        finally:
            process.kill()


def list_listeners() -> list[tuple[str, int]]:
    """Return where the host listens: each port at all addresses of the host that it has."""
    own = [a.address for found in psutil.net_if_addrs().values() for a in found if a.family == 2]
    found: set[tuple[str, int]] = set()
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr:
            address, port = connection.laddr
            hosts = [address] if address not in ("0.0.0.0", "::") else [*own, "::1"]
            found |= {(host, port) for host in hosts}
    return sorted(found)


@contextmanager
def listening(address: str) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        yield


@contextmanager
def system_v_objects() -> Iterator[int]:
    """A message queue and shared memory that everybody may use. Yields their key."""
    libc, key = ctypes.CDLL(None, use_errno=True), secrets.randbelow(1 << 30) + 1
    queue, memory = libc.msgget(key, _CREATE | 0o666), libc.shmget(key, 4096, _CREATE | 0o666)
    assert queue >= 0 and memory >= 0
    try:
        yield key
    finally:
        libc.msgctl(queue, _REMOVE, None)
        libc.shmctl(memory, _REMOVE, None)


def run(
    code: str, *, limits: Limits = _LIMITS, layers: Layers = _ALL_LAYERS, **environment: str
) -> Ended:
    command = [bubblewrap.PYTHON, "-I", "-c", textwrap.dedent(code)]
    return SandboxedProcess(Program(command, environment, limits=limits), layers).wait()


def attack(
    targets: dict[str, Any],
    *names: str,
    layers: Layers = _ALL_LAYERS,
    limits: Limits = _LIMITS,
) -> dict[str, str]:
    program = Program(
        [bubblewrap.PYTHON, "-I", f"{BUNDLE}/attacks.py", *names],
        {"TARGETS": json.dumps(targets)},
        [Shown(_HOSTILE, BUNDLE)],
        limits=limits,
    )
    ended = SandboxedProcess(program, layers).wait()
    assert ended.exit_code == 0, ended.output.decode()
    report = json.loads(ended.output)
    assert report["tried"] == (len(names) or _IN_PYTHON)
    return report["succeeded"]


def test_no_attack_succeeds(targets: dict[str, Any]) -> None:
    assert attack(targets) == {}


def node_attack(targets: dict[str, Any], *names: str, layers: Layers = _ALL_LAYERS) -> set[str]:
    """Run the attacks in Node. Returns those that worked."""
    command = [bubblewrap.NODE, f"{BUNDLE}/attacks.mjs", *names]
    return run_attacks(
        Program(
            command,
            {"TARGETS": json.dumps(targets)},
            [Shown(_HOSTILE, BUNDLE)],
            limits=replace(_LIMITS, reserves_memory=True),
            uses_node=True,
        ),
        layers,
        len(names) or _IN_NODE,
    )


def native_attack(
    targets: dict[str, Any], directory: Path, *names: str, layers: Layers = _ALL_LAYERS
) -> set[str]:
    """Compile and run the attacks in C. Returns those that worked."""
    limits = replace(_LIMITS, reserves_memory=True)
    files = [Shown(compile_attacks(directory), f"{BUNDLE}/attacks")]
    environment = {name.upper(): str(value) for name, value in targets.items()}
    command = [f"{BUNDLE}/attacks", *names]
    return run_attacks(
        Program(command, environment, files, limits=limits), layers, len(names) or _NATIVE
    )


def compile_attacks(directory: Path, name: str = "attacks") -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    program = directory / name
    source = str(_HOSTILE / f"{name}.c")
    subprocess.run([compiler, "-O1", "-w", "-o", str(program), source], check=True)
    return program


def run_attacks(program: Program, layers: Layers, tried: int) -> set[str]:
    ended = SandboxedProcess(program, layers).wait()
    assert ended.exit_code == 0, ended.output.decode()
    report = json.loads(ended.output.splitlines()[-1])
    assert report["tried"] == tried, report
    return set(report["succeeded"])


def test_on_lambda_only_sockets_of_tcp_can_be_made(targets: dict[str, Any], tmp_path: Path) -> None:
    """And they reach nothing: the network namespace has its own loopback only."""
    sockets = tmp_path / "sockets"
    sockets.mkdir(mode=0o755)
    scripts, native = Shown(_HOSTILE, BUNDLE), Shown(compile_attacks(tmp_path), f"{BUNDLE}/native")
    named = {name.upper(): str(value) for name, value in targets.items()}
    environment = {**named, "TARGETS": json.dumps(targets)}
    listen = {"port": 9001, "control": f"{SOCKETS}/control.sock"}

    def run_on_loopback(command: list[str], bundle: Shown, *, uses_node: bool = False) -> set[str]:
        limits = replace(_LIMITS, reserves_memory=uses_node or bundle is native)
        files = [bundle, Shown(sockets, SOCKETS)]
        program = Program(command, environment, files, limits=limits, uses_node=uses_node)
        tried = {scripts: _IN_NODE if uses_node else _IN_PYTHON, native: _NATIVE}[bundle]
        return run_attacks(replace(program, listen=listen), _ALL_LAYERS, tried)

    with listen_at(sockets / "control.sock"):
        succeeded = [
            run_on_loopback([bubblewrap.PYTHON, "-I", f"{BUNDLE}/attacks.py"], scripts),
            run_on_loopback([bubblewrap.NODE, f"{BUNDLE}/attacks.mjs"], scripts, uses_node=True),
            run_on_loopback([f"{BUNDLE}/native"], native),
        ]
    assert succeeded == [
        {"open_a_socket_of_another_family"},
        {"listen_on_a_port", "open_the_inspector"},
        {"open_any_family"},
    ]


def test_no_attack_in_node_succeeds(targets: dict[str, Any]) -> None:
    assert node_attack(targets) == set()


def test_no_native_attack_succeeds(targets: dict[str, Any], tmp_path: Path) -> None:
    assert native_attack(targets, tmp_path) == set()


def test_without_the_call_filter_native_and_node_programs_reach_more(
    targets: dict[str, Any], tmp_path: Path
) -> None:
    """The network namespace has no way to the host, but its own loopback can be used."""
    off = Layers(seccomp=False)
    assert node_attack(targets, "listen_on_a_port", layers=off) == {"listen_on_a_port"}
    native = (
        *("open_any_family", "make_a_file_in_memory", "join_a_keyring"),
        *("keep_memory_in_no_process", "keep_messages_in_the_kernel"),
        *("keep_semaphores_in_the_kernel", "call_by_an_x32_number"),
    )
    assert native_attack(targets, tmp_path, *native, layers=off) >= set(native[:-1])


def test_without_landlock_node_can_list_the_root(
    targets: dict[str, Any],
) -> None:
    names = ("list_the_root",)
    assert node_attack(targets, *names, layers=Layers(landlock=False)) == set(names)


def test_the_attacks_succeed_outside_a_sandbox(targets: dict[str, Any]) -> None:
    """The attacks are real: without a sandbox those that need no privilege work."""
    names = [
        *("connect_to_the_host", "connect_to_an_abstract_socket", "connect_to_a_socket_file"),
        *("read_a_secret", "see_other_processes", "signal_a_process_of_the_host"),
        *("make_a_file_in_memory", "open_a_socket_of_another_family"),
        *("find_a_message_queue_of_the_host", "find_shared_memory_of_the_host"),
        *("see_the_name_of_the_host", "open_too_many_files", "connect_to_every_listening_port"),
        *("find_the_environment_of_the_launcher",),
    ]
    targets["listeners"] = [("127.0.0.1", targets["port"])]
    assert attack_outside(targets, *names) == set(names)


def attack_outside(targets: dict[str, Any], *names: str) -> set[str]:
    """Run the attacks without a sandbox. Returns those that worked."""
    done = subprocess.run(
        [sys.executable, "-I", str(_HOSTILE / "attacks.py"), *names],
        env={"TARGETS": json.dumps(targets)},
        capture_output=True,
        check=True,
        text=True,
    )
    return set(json.loads(done.stdout)["succeeded"])


def test_native_and_node_attacks_succeed_outside_a_sandbox(
    targets: dict[str, Any], tmp_path: Path
) -> None:
    native = [
        *("open_any_family", "connect_to_the_host", "connect_to_an_abstract_socket"),
        *("connect_to_a_socket_file", "read_a_secret", "read_a_secret_by_openat2"),
        *("signal_a_process_of_the_host", "make_a_file_in_memory", "start_a_shell"),
        *("read_memory_of_the_parent", "start_a_program_from_tmp", "open_too_many_files"),
        *("find_a_message_queue_of_the_host", "find_shared_memory_of_the_host"),
        *("connect_to_every_listening_port", "see_the_name_of_the_host"),
        *("find_the_environment_of_the_launcher", "fill_shared_memory"),
    ]
    own = {"listeners": [("127.0.0.1", targets["port"])], "ports": targets["port"]}
    targets = {**targets, **own}
    environment = {name.upper(): str(value) for name, value in targets.items()}
    done = subprocess.run(
        [compile_attacks(tmp_path), *native], env=environment, capture_output=True, check=True
    )
    assert set(json.loads(done.stdout)["succeeded"]) >= set(native) - {"read_memory_of_the_parent"}
    node = [
        *("connect_to_the_host", "connect_to_an_abstract_socket", "connect_to_a_socket_file"),
        *("listen_on_a_port", "send_a_datagram", "open_the_inspector", "read_a_secret"),
        *("start_a_shell", "signal_a_process_of_the_host", "see_other_processes"),
        *("connect_to_every_listening_port", "see_the_name_of_the_host"),
        *("find_the_environment_of_the_launcher", "fill_shared_memory"),
    ]
    done = subprocess.run(
        [find_node(), _HOSTILE / "attacks.mjs", *node],
        env={"TARGETS": json.dumps(targets)},
        capture_output=True,
        check=True,
    )
    assert set(json.loads(done.stdout)["succeeded"]) == set(node)


def test_without_the_call_filter_more_kernel_calls_are_possible(targets: dict[str, Any]) -> None:
    names = ("make_a_file_in_memory", "open_a_socket_of_another_family")
    assert attack(targets, *names) == {}
    assert set(attack(targets, *names, layers=Layers(seccomp=False))) == set(names)


def test_without_landlock_the_root_directory_can_be_listed() -> None:
    code = "import os; print(os.listdir('/'))"
    assert b"PermissionError" in run(code).output
    assert run(code, layers=Layers(landlock=False)).exit_code == 0


def test_without_the_network_namespace_the_host_can_be_reached(targets: dict[str, Any]) -> None:
    names = (
        *("connect_to_the_host", "connect_to_an_abstract_socket"),
        "connect_to_every_listening_port",
    )
    targets["listeners"] = [("127.0.0.1", targets["port"])]
    bare = Layers(seccomp=False, landlock=False)
    assert attack(targets, *names, layers=bare) == {}
    assert set(attack(targets, *names, layers=replace(bare, network=False))) == set(names)


def test_without_the_ipc_namespace_objects_of_the_host_can_be_found(
    targets: dict[str, Any],
) -> None:
    names = ("find_a_message_queue_of_the_host", "find_shared_memory_of_the_host")
    assert attack(targets, *names, layers=Layers(ipc=False)) == {}  # the call filter
    assert attack(targets, *names, layers=Layers(seccomp=False)) == {}
    off = Layers(seccomp=False, ipc=False)
    assert set(attack(targets, *names, layers=off)) == set(names)


def test_without_the_call_filter_memory_and_messages_can_outlive_every_process(
    targets: dict[str, Any],
) -> None:
    names = (
        *("keep_memory_in_no_process", "keep_messages_in_the_kernel"),
        *("keep_semaphores_in_the_kernel", "keep_messages_in_a_posix_queue"),
    )
    assert attack(targets, *names) == {}
    # Not every kernel has POSIX queues.
    assert set(attack(targets, *names, layers=Layers(seccomp=False))) >= set(names[:3])


def test_without_the_uts_namespace_the_name_of_the_host_is_seen(targets: dict[str, Any]) -> None:
    name = "see_the_name_of_the_host"
    assert attack(targets, name) == {}
    assert set(attack(targets, name, layers=Layers(host_name=False))) == {name}


def test_without_the_call_filter_namespaces_inside_are_still_refused(
    targets: dict[str, Any],
) -> None:
    name = "get_a_user_namespace"
    assert attack(targets, name, layers=Layers(seccomp=False)) == {}
    off = Layers(seccomp=False, nested=False)
    assert set(attack(targets, name, layers=off)) == {name}


class NarrowLimits(Limits):
    """Limits of a process that are below those of the whole program, which would end it first."""

    cpu_seconds = 1
    file_bytes = 2 * MIB


def test_without_limits_of_the_process_the_size_of_files_is_not_limited(
    targets: dict[str, Any],
) -> None:
    limits = replace(NarrowLimits(**asdict(_LIMITS)), open_files=64)
    changed = {**targets, "file_bytes": limits.file_bytes, "open_files": limits.open_files}
    names = ("write_a_large_file", "open_too_many_files")
    assert attack(changed, *names, limits=limits) == {}
    off = Layers(rlimits=False)
    assert set(attack(changed, *names, limits=limits, layers=off)) == set(names)


def test_the_processor_time_of_a_process_is_limited() -> None:
    code = "while True: pass"
    limits = replace(NarrowLimits(**asdict(_LIMITS)), wall_seconds=30)
    ended = run(code, limits=limits)
    assert (ended.reason, ended.exit_code != 0) == ("exited", True)
    limits = replace(limits, wall_seconds=5)
    assert run(code, limits=limits, layers=Layers(rlimits=False)).reason == "timeout"


def test_processes_are_limited_by_each_process_and_by_the_control_group(
    targets: dict[str, Any],
) -> None:
    name = "start_too_many_processes"
    assert attack(targets, name, layers=Layers(cgroup=False)) == {}
    bare = Layers(cgroup=False, rlimits=False)
    assert set(attack(targets, name, layers=bare)) == {name}
    if has_control_groups():
        assert attack(targets, name, layers=Layers(rlimits=False)) == {}


def test_without_a_watchdog_the_control_group_limits_the_memory() -> None:
    if not has_control_groups():
        pytest.skip("this machine has no writable control groups")
    kept = "kept = b'x' * (400 << 20)"
    bare = Layers(rlimits=False, watchdog=False)
    assert run(kept, layers=bare).reason == "memory"
    assert run(kept, layers=replace(bare, cgroup=False)).reason == "exited"


def has_control_groups() -> bool:
    group = cgroups.create(_LIMITS)
    if group is not None:
        group.remove()
    return group is not None


def test_a_function_reaches_nothing_of_another_one_that_runs(
    targets: dict[str, Any], tmp_path: Path
) -> None:
    sockets, token = tmp_path / "of_another", secrets.token_hex(16)
    sockets.mkdir(mode=0o755)
    (sockets / "event.json").write_text(token)
    command = [bubblewrap.PYTHON, "-I", "-c", "import signal; signal.pause()"]
    shown, environment = [Shown(sockets, SOCKETS)], {"TRACE_TASK_CAPABILITY_TOKEN": token}
    other = SandboxedProcess(Program(command, environment, shown, limits=_LIMITS))
    try:
        with listening(str(sockets / "broker.sock")):
            assert other.wait_for_start()
            inside = psutil.Process(other.pid).children(recursive=True)[-1]
            changed = {
                **targets,
                "socket": str(sockets / "broker.sock"),
                "secret": str(sockets / "event.json"),
                "pid": inside.pid,
                "token": token,
            }
            names = (
                *("connect_to_a_socket_file", "read_a_secret", "signal_a_process_of_the_host"),
                *("read_a_secret_through_root_of_pid_1", "find_the_token_of_another_function"),
                *("see_other_processes", "read_the_memory_of_pid_1"),
            )
            assert attack(changed, *names) == {}
            assert set(attack_outside(changed, *names)) >= set(names[:3]) | {names[4]}
            assert inside.is_running()
    finally:
        other.kill()
        other.wait()


@pytest.mark.skipif(not _IS_ROOT, reason="only root can use another user id")
def test_a_sandbox_has_a_user_id_of_its_own() -> None:
    first, second = (start_sleeper() for _ in range(2))
    try:
        uids = [psutil.Process(process.pid).uids().real for process in (first, second)]
        eventually(lambda: all(psutil.Process(p.pid).uids().real != 0 for p in (first, second)))
        uids = [psutil.Process(process.pid).uids().real for process in (first, second)]
        assert len(set(uids)) == 2
    finally:
        for process in (first, second):
            process.kill()
            process.wait()


def test_the_environment_holds_only_what_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    ended = run("import json, os; print(json.dumps(dict(os.environ)))", GIVEN="1")
    assert json.loads(ended.output) == {
        "GIVEN": "1",
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "PATH": "",
        "PWD": "/",
    }


def test_a_program_that_runs_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("started", flush=True)
        while True:
            pass
    """
    marker = secrets.token_hex(8)
    for seconds in (1, 4, 16, 64):  # a busy machine may need longer to start the program
        ended = run(code, limits=replace(_LIMITS, wall_seconds=seconds), MARKER=marker)
        assert ended.reason == "timeout"
        if b"started" in ended.output:
            break
    else:
        pytest.fail("the program did not start")
    eventually(lambda: not processes_with(marker))


def test_a_killed_program_leaves_nothing() -> None:
    process = start_sleeper()
    tree = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    assert process.wait().reason == "killed"
    eventually(lambda: not any(child.is_running() for child in tree))


def test_a_program_has_started_when_all_layers_are_in_place() -> None:
    process = start_sleeper()
    try:
        assert process.wait_for_start()
    finally:
        process.kill()
        process.wait()
    assert process.wait_for_start()
    missing = Program(["/x"], files=[Shown(Path("/etc/passwd"), "/proc/not/possible")])
    refused = SandboxedProcess(missing)
    assert not refused.wait_for_start()
    assert refused.wait().exit_code != 0


def test_memory_of_children_and_shared_mappings_counts() -> None:
    code = """
        import mmap, os, signal
        for _ in range(4):
            if os.fork() == 0:
                shared = mmap.mmap(-1, 100 << 20)
                for offset in range(0, len(shared), 4096):
                    shared[offset] = 1
                signal.pause()
        signal.pause()
    """
    assert run(code).reason == "memory"


def test_without_a_control_group_the_memory_is_still_limited() -> None:
    code = """
        import os, signal
        for _ in range(4):
            if os.fork() == 0:
                kept = b"x" * (100 << 20)
                signal.pause()
        signal.pause()
    """
    assert run(code, layers=Layers(cgroup=False)).reason == "memory"
    unlimited = Layers(cgroup=False, watchdog=False)
    assert run(code, limits=replace(_LIMITS, wall_seconds=3), layers=unlimited).reason == "timeout"


def test_a_flood_of_output_is_cut() -> None:
    ended = run("for _ in range(100): print('x' * 1_000_000)")
    assert (ended.exit_code, len(ended.output), ended.is_truncated) == (0, 100_000, True)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have no second entry")
def test_calls_of_32_bit_programs_end_the_program() -> None:
    code = """
        import ctypes, mmap
        # mov eax, 20 (getpid); int 0x80; ret
        code = bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3])
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
    """
    assert run(code).exit_code != 0
    assert run(code, layers=Layers(seccomp=False)).exit_code == 0


def test_control_groups_are_removed() -> None:
    group = cgroups.create(_LIMITS)
    if group is None:
        pytest.skip("this machine has no writable control groups")
    assert all(directory.is_dir() for directory in group.directories)
    group.remove()
    assert not any(directory.exists() for directory in group.directories)


@contextmanager
def sleeping(uid: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "infinity"], user=uid, group=uid) as process:
        try:
            yield process
        finally:
            process.kill()


def test_control_groups_whose_members_ended_later_are_removed() -> None:
    used, left = cgroups.create(_LIMITS), cgroups.create(_LIMITS)
    if used is None or left is None:
        pytest.skip("this machine has no writable control groups")
    with sleeping() as member:
        for path in left.members:
            Path(path).write_text(str(member.pid))
        left.remove()
        assert has_control_groups()
        assert all(directory.is_dir() for directory in left.directories)
    # Each new group removes some of those that were left, also by other programs.
    eventually(lambda: has_control_groups() and not any(d.exists() for d in left.directories))
    assert all(directory.is_dir() for directory in used.directories)
    used.remove()


# --- the isolation `reduced`: no namespaces --------------------------------------------------------

needs_root = pytest.mark.skipif(not _IS_ROOT, reason="`reduced` needs root")


@pytest.fixture
def python() -> Path:
    """An interpreter that every user can start."""
    for path in (Path(bubblewrap.PYTHON), Path("/usr/bin/python3")):
        try:
            require_reachable(str(path))
        except SandboxUnavailable:
            continue
        if path.exists():
            return path.resolve()
    pytest.skip("no Python is installed where every user can start it")


def reduced(python: Path, *command: str, **environment: str) -> Program:
    files = [Shown(python, str(python)), Shown(_HOSTILE, BUNDLE)]
    return Program(
        [str(python), "-I", *command], environment, files, limits=_LIMITS, isolation="reduced"
    )


def attack_reduced(
    targets: dict[str, Any], python: Path, *names: str, layers: Layers = _ALL_LAYERS
) -> set[str]:
    script = f"{BUNDLE}/attacks.py"
    program = reduced(python, script, *names, TARGETS=json.dumps(targets))
    return run_attacks(program, layers, len(names) or _IN_PYTHON)


@needs_root
def test_without_namespaces_only_the_name_of_the_host_is_seen(
    targets: dict[str, Any], python: Path
) -> None:
    assert attack_reduced(targets, python) == {"see_the_name_of_the_host"}


@needs_root
def test_without_namespaces_a_program_in_node_sees_only_the_name_of_the_host(
    targets: dict[str, Any],
) -> None:
    command = [bubblewrap.NODE, f"{BUNDLE}/attacks.mjs"]
    files = [Shown(_HOSTILE, BUNDLE)]
    limits = replace(_LIMITS, reserves_memory=True)
    environment = {"TARGETS": json.dumps(targets)}
    program = Program(
        command, environment, files, limits=limits, uses_node=True, isolation="reduced"
    )
    assert run_attacks(program, _ALL_LAYERS, _IN_NODE) == {"see_the_name_of_the_host"}


@needs_root
def test_without_namespaces_a_native_program_sees_only_the_name_of_the_host(
    targets: dict[str, Any], tmp_path: Path
) -> None:
    limits = replace(_LIMITS, reserves_memory=True)
    files = [Shown(compile_attacks(tmp_path), f"{BUNDLE}/attacks")]
    environment = {name.upper(): str(value) for name, value in targets.items()}
    command = [f"{BUNDLE}/attacks"]
    program = Program(command, environment, files, limits=limits, isolation="reduced")
    assert run_attacks(program, _ALL_LAYERS, _NATIVE) == {"see_the_name_of_the_host"}


@needs_root
def test_without_namespaces_each_layer_stops_attacks(
    targets: dict[str, Any], python: Path, tmp_path: Path
) -> None:
    calls = ("connect_to_the_host", "make_a_file_in_memory", "keep_memory_in_no_process")
    assert attack_reduced(targets, python, *calls) == set()
    assert attack_reduced(targets, python, *calls, layers=Layers(seccomp=False)) == set(calls)
    files = ("see_other_processes", "connect_to_an_abstract_socket")
    if landlock.version() >= 6:
        assert attack_reduced(targets, python, *files) == set()
    assert attack_reduced(targets, python, *files, layers=Layers(landlock=False)) == set(files)
    limits = ("open_too_many_files",)
    assert attack_reduced(targets, python, *limits, layers=Layers(rlimits=False)) == set(limits)


@needs_root
def test_without_namespaces_other_functions_are_out_of_reach(
    targets: dict[str, Any], python: Path, tmp_path: Path
) -> None:
    token, sockets = secrets.token_hex(16), tmp_path / "of_another"
    tmp_path.chmod(0o700)
    sockets.mkdir(mode=0o755)
    (sockets / "event.json").write_text(token)
    program = reduced(
        python, "-c", "import signal; signal.pause()", TRACE_TASK_CAPABILITY_TOKEN=token
    )
    program = replace(program, files=[*program.files, Shown(sockets, SOCKETS)])
    other = SandboxedProcess(program)
    try:
        with listening(str(sockets / "broker.sock")):
            assert other.wait_for_start()
            (inside,) = psutil.Process(other.pid).children()
            changed = {
                **targets,
                "socket": str(sockets / "broker.sock"),
                "secret": str(sockets / "event.json"),
                "pid": inside.pid,
                "token": token,
            }
            names = (
                *("connect_to_a_socket_file", "read_a_secret", "signal_a_process_of_the_host"),
                "find_the_token_of_another_function",
            )
            # Even without the other layers: they have different user ids.
            bare = Layers(seccomp=False, landlock=False)
            assert attack_reduced(changed, python, *names) == set()
            assert attack_reduced(changed, python, *names, layers=bare) == set()
            assert attack_outside(changed, *names) == set(names)
            assert inside.is_running()
    finally:
        other.kill()
        other.wait()


@needs_root
def test_without_namespaces_sockets_that_everyone_may_open_are_reachable(
    targets: dict[str, Any], python: Path
) -> None:
    """Known and documented: Landlock has no rule for them."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        path = f"{directory}/socket"
        with listening(path):
            Path(path).chmod(0o666)
            changed, name = {**targets, "socket": path}, "connect_to_a_socket_file"
            assert attack(changed, name) == {}
            assert attack_reduced(changed, python, name) == {name}


@needs_root
def test_the_spawner_starts_programs_without_namespaces(
    targets: dict[str, Any], tmp_path: Path
) -> None:
    shown = [Shown(compile_attacks(tmp_path), f"{BUNDLE}/attacks")]
    environment = {name.upper(): str(value) for name, value in targets.items()}
    command = [f"{BUNDLE}/attacks", "open_any_family", "become_root"]
    connection, process = launch_spawner(tmp_path)
    spawner = Spawner(connection)
    try:
        program = Program(command, environment, shown, limits=_LIMITS, isolation="reduced")
        started = spawner.start(program, lambda part: None)
        assert started.wait_for_start()
        assert json.loads(started.wait().output) == {"succeeded": {}, "tried": 2}
    finally:
        spawner.close()
        assert process.wait() == 0


_LEAVE_PROCESSES = """
import os, signal, sys
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(1, b".")
            while True:
                signal.pause()
        os._exit(0)
if sys.argv[1] == "stay":
    signal.pause()
"""


@needs_root
@pytest.mark.parametrize("how", ["stay", "end"])
def test_without_namespaces_no_process_outlives_its_function(python: Path, how: str) -> None:
    marker = secrets.token_hex(8)
    arrived = threading.Semaphore(0)
    process = SandboxedProcess(
        reduced(python, "-c", _LEAVE_PROCESSES, how, MARKER=marker),
        on_output=lambda part: [arrived.release() for _ in part] and None,
    )
    if how == "stay":
        for _ in range(3):
            assert arrived.acquire(timeout=120)
        process.kill()
    assert process.wait().reason == ("killed" if how == "stay" else "exited")
    assert processes_with(marker) == []


@needs_root
def test_without_namespaces_a_killed_launcher_takes_all_processes_with_it(python: Path) -> None:
    marker, arrived = secrets.token_hex(8), threading.Semaphore(0)
    process = SandboxedProcess(
        reduced(python, "-c", _LEAVE_PROCESSES, "stay", MARKER=marker),
        on_output=lambda part: [arrived.release() for _ in part] and None,
    )
    for _ in range(3):
        assert arrived.acquire(timeout=120)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert processes_with(marker) == []


_END_OTHERS_FIRST = """
import os, signal
if os.fork() != 0:
    signal.pause()
while True:
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


@needs_root
def test_without_namespaces_a_function_cannot_end_what_ends_it(python: Path) -> None:
    """Landlock forbids it since Linux 6.12. Before, the user ids do."""
    for _ in range(10):
        marker = secrets.token_hex(8)
        program = reduced(python, "-c", _END_OTHERS_FIRST, MARKER=marker)
        process = SandboxedProcess(program, Layers(landlock=False))
        # The child ends its parent, so the program ends. The child itself would go on.
        assert process.wait().reason == "exited"
        assert processes_with(marker) == []


@needs_root
def test_the_spawner_reaps_what_a_killed_function_left(tmp_path: Path) -> None:
    """Without it, each forced end would use up a user id, where no init process reaps."""
    shown = [Shown(compile_attacks(tmp_path, "bombs"), f"{BUNDLE}/bombs")]
    program = Program([f"{BUNDLE}/bombs", "survive_its_end"], files=shown, isolation="reduced")
    connection, process = launch_spawner(tmp_path)
    spawner, has_printed = Spawner(connection), threading.Event()
    used: set[int] = set()
    try:
        for _ in range(4):
            started = spawner.start(program, lambda part: has_printed.set())
            assert started.wait_for_start() and has_printed.wait(60)
            below = psutil.Process(process.pid).children(recursive=True)
            used |= {_read_uid(child.pid) for child in below} & {*uids._UIDS}
            started.kill()
            assert started.wait().reason == "killed"
        assert len(used) == 1
    finally:
        spawner.close()
        assert process.wait() == 0


def _read_uid(pid: int) -> int:
    try:
        return psutil.Process(pid).uids().real
    except psutil.NoSuchProcess:
        return 0


@contextmanager
def left_behind(uid: int) -> Iterator[int]:
    """A process with a user id, whose parent does not reap it. Yields its id."""
    code = f"""
import os, signal
pid = os.fork()
if pid == 0:
    os.setuid({uid})
    os.execv("/bin/sleep", ["sleep", "infinity"])
print(pid, flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            eventually(lambda: psutil.Process(pid).uids().real == uid, "it has its user id")
            yield pid
        finally:
            parent.kill()


@needs_root
def test_a_user_id_with_processes_that_are_not_reaped_is_not_used() -> None:
    with reserve_uid() as uid:
        assert uid is not None
    with left_behind(uid) as left:
        with reserve_uid() as other:
            assert other != uid
        # It was ended, and nothing has reaped it yet.
        eventually(lambda: not process_tree.is_running(left))
        with reserve_uid() as other:
            assert other != uid


@needs_root
def test_without_namespaces_files_of_a_killed_worker_are_removed(tmp_path: Path) -> None:
    shown = [Shown(tmp_path, "/var/task")]
    left, of_another = (make_view(shown, uid) for uid in (65190, 65191))
    again = make_view(shown, 65190)
    try:
        assert not left.directory.exists() and of_another.directory.exists()
        assert again.translate("/var/task/a") == f"{again.directory}/files/var/task/a"
    finally:
        again.remove()
        of_another.remove()
    assert not again.directory.exists()


@needs_root
def test_without_namespaces_memory_of_all_processes_counts(python: Path) -> None:
    code = """
import os, signal
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        kept = b"x" * (100 << 20)
        signal.pause()
signal.pause()
"""
    for layers in (_ALL_LAYERS, Layers(cgroup=False)):
        assert SandboxedProcess(reduced(python, "-c", code), layers).wait().reason == "memory"


@needs_root
def test_without_namespaces_nothing_is_left_on_the_host(python: Path) -> None:
    before = set(Path("/tmp").glob("trace-function-*"))
    code = "import os; open(os.environ['TMPDIR'] + '/a', 'w').write('x'); print(os.getcwd())"
    ended = SandboxedProcess(reduced(python, "-c", code)).wait()
    assert ended.exit_code == 0 and b"/trace-function-" in ended.output
    assert not Path(ended.output.decode().strip()).exists()
    assert set(Path("/tmp").glob("trace-function-*")) <= before


def test_the_isolation_reduced_is_refused_where_it_would_isolate_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Program([bubblewrap.PYTHON], isolation="reduced")
    with pytest.raises(SandboxUnavailable, match="needs root and Landlock"):
        SandboxedProcess(program, Layers(own_uid=False))
    if _IS_ROOT:
        with pytest.raises(SandboxUnavailable, match="cannot serve `lambda`"):
            SandboxedProcess(replace(program, listen={"port": 1, "control": "/x"}))
        monkeypatch.setattr(landlock, "version", lambda: 0)
        with pytest.raises(SandboxUnavailable, match="needs root and Landlock"):
            SandboxedProcess(program)


def test_a_program_that_other_users_cannot_start_is_named(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    with pytest.raises(SandboxUnavailable, match="who cannot enter") as refused:
        require_reachable(str(tmp_path / "closed" / "python"))
    assert "where all users can enter" in refused.value.fix


def start_sleeper() -> SandboxedProcess:
    code = "import signal; signal.pause()"
    process = SandboxedProcess(Program([bubblewrap.PYTHON, "-I", "-c", code], limits=_LIMITS))
    eventually(lambda: len(psutil.Process(process.pid).children(recursive=True)) > 0)
    return process


def processes_with(marker: str) -> list[int]:
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARKER") == marker:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def test_the_spawner_shows_only_files_of_its_directory(tmp_path: Path) -> None:
    allowed, secret = tmp_path / "allowed", tmp_path / "secret"
    allowed.mkdir()
    (allowed / "code.py").write_text("print('ran')")
    (allowed / "link").symlink_to(secret)
    secret.write_text("password")
    connection, process = launch_spawner(allowed)
    spawner = Spawner(connection)
    printed: list[bytes] = []
    try:
        for path in (secret, allowed / "link", allowed / ".." / "secret", Path("/etc")):
            with pytest.raises(OSError, match="outside of"):
                program = Program(["/x"], files=[Shown(path, "/var/task")])
                refused = spawner.start(program, printed.append)
                assert not refused.wait_for_start()
                refused.wait()
        shown = [Shown(allowed / "code.py", "/var/task/code.py")]
        command = [bubblewrap.PYTHON, "-I", "/var/task/code.py"]
        started = spawner.start(Program(command, files=shown), printed.append)
        assert started.wait_for_start()
        ended = started.wait()
        assert ended.output == b"".join(printed) == b"ran\n"
        sleeping = Program([bubblewrap.PYTHON, "-c", "import signal; signal.pause()"])
        sleeper = spawner.start(sleeping, printed.append)
        sleeper.kill()
        assert sleeper.wait().reason == "killed"
    finally:
        spawner.close()
        assert process.wait() == 0
