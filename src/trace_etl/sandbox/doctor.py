"""Test each layer of the sandbox for real, on this machine.

A layer works if an attack fails with it and succeeds without it, where that can be tried without harm.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from trace_etl import account, landlock, launcher
from trace_etl.model.task import Isolation
from trace_etl.sandbox import bubblewrap, cgroups, seccomp
from trace_etl.sandbox.errors import SandboxUnavailable
from trace_etl.sandbox.limits import MIB, Limits
from trace_etl.sandbox.node import find_node
from trace_etl.sandbox.process import Ended, Layers, Program, SandboxedProcess

_SOCKET = "import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM)"
_LIST_ROOT = "import os; os.listdir('/')"
_LIST_NAMESPACES = """
import os
for name in ('user', 'mnt', 'pid', 'net', 'ipc', 'uts'):
    print(os.readlink('/proc/self/ns/' + name))
"""
_CONNECT = """
import socket
for line in open('/proc/net/route').readlines()[1:]:
    print('route', line)
socket.create_connection(('127.0.0.1', {port}), timeout=5)
"""
_USE_MEMORY = "kept = b'x' * (128 << 20)"
_KEEP_MEMORY = "import signal; kept = b'x' * (128 << 20); signal.pause()"
_OPEN_FILES = "import os; kept = [os.open('/dev/null', os.O_RDONLY) for _ in range(80)]"
_FORK = """
import os, signal
children = []
try:
    for _ in range(40):
        child = os.fork()
        if child == 0:
            signal.pause()
        children.append(child)
finally:
    for child in children:
        os.kill(child, signal.SIGKILL)
"""
_WAIT = "import signal; signal.pause()"
_LIMITS = Limits(memory_bytes=64 * MIB, open_files=64, processes=32, wall_seconds=30)
_PROFILE = "/etc/apparmor.d/bwrap-userns-restrict"
"""Where Ubuntu 25.04 has it. Until then it is in the directory of extra profiles."""
_BWRAP_PROFILE = re.compile(r"^(profile\s+\S+\s+)?/usr/bin/bwrap\s", re.MULTILINE)
_APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"
_SETTINGS = {"user.max_user_namespaces": 10000, "kernel.unprivileged_userns_clone": 1}
_CONTAINER_OPTIONS = ("seccomp", "apparmor", "systempaths")
_READABLE = [*("/usr", "/lib", "/lib64", "/bin", "/etc", "/proc"), sys.prefix, sys.base_prefix]
_NO_WATCH = Layers(rlimits=False, watchdog=False)
_NO_LIMIT = replace(_NO_WATCH, cgroup=False)


@dataclass(frozen=True)
class Finding:
    """What a test of one layer found. Without a required layer no function runs."""

    layer: str
    works: bool
    detail: str
    fix: str = ""
    is_required: bool = True


def examine_sandbox() -> list[Finding]:
    """Test every layer."""
    findings = examine_required()
    if all(finding.works for finding in findings):
        tests = (_test_landlock, _test_network, _test_process_limits)
        findings += [_test(test) for test in tests]
        findings += [_test(test) for test in (_test_control_group, _test_watchdog, _test_user_ids)]
    return [*findings, _test_reduced(), _test_node(), _test(_test_operator_host)]


def examine_required() -> list[Finding]:
    """Test the layers without which no function runs."""
    findings = [_test(_test_bubblewrap), _test(_test_namespaces)]
    return [*findings, _test(_test_call_filter)] if findings[1].works else findings


def _test(test: Callable[[], Finding]) -> Finding:
    layer = test.__name__.removeprefix("_test_").replace("_", " ")
    try:
        return test()
    except SandboxUnavailable as error:
        return Finding(layer, False, error.problem, error.fix)
    except OSError as error:
        return Finding(layer, False, str(error))


def _test_bubblewrap() -> Finding:
    binary = bubblewrap.find_bwrap()
    origin = "the Python package" if binary.libraries else "the system"
    return Finding("bubblewrap", True, f"from {origin}")


def _test_namespaces() -> Finding:
    layers = Layers(seccomp=False, landlock=False, cgroup=False)
    code, lines = _run(_LIST_NAMESPACES, layers)
    names = ("user", "mnt", "pid", "net", "ipc", "uts")
    ours = [str(Path("/proc/self/ns", name).readlink()) for name in names]
    shared = [name for name, own in zip(names, ours, strict=True) if own in lines]
    if code == 0 and len(lines) == len(names) and not shared:
        return Finding("namespaces", True, "user, mount, process, network, IPC and host name")
    problem = f"not separated: {', '.join(shared)}" if shared else _get_last_line(lines)
    return Finding("namespaces", False, problem, explain_namespaces(problem))


def _test_call_filter() -> Finding:
    if not seccomp.is_supported():
        rule = "there is no filter for this processor"
        return Finding("call filter", False, rule, "use a machine with x86-64 or ARM64")
    open_code, _ = _run(_SOCKET, Layers(seccomp=False))
    closed_code, lines = _run(_SOCKET, Layers())
    works = open_code == 0 and closed_code != 0 and "not supported" in _get_last_line(lines)
    fix = "" if works else "use a kernel with CONFIG_SECCOMP_FILTER"
    return Finding(
        "call filter", works, "a socket was refused" if works else _get_last_line(lines), fix
    )


def _test_landlock() -> Finding:
    if not landlock.version():
        fix = "use Linux 5.19 or newer with Landlock enabled (lsm=…,landlock)"
        return Finding("landlock", False, "the kernel has none", fix, is_required=False)
    code, lines = _run(_LIST_ROOT, Layers())
    works = code != 0 and "PermissionError" in _get_last_line(lines)
    detail = f"version {landlock.version()}: a read was refused" if works else _get_last_line(lines)
    return Finding("landlock", works, detail, is_required=False)


def _test_network() -> Finding:
    """Let a program without a call filter look for routes, and connect to a port of this process."""
    bare = Layers(seccomp=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = _CONNECT.format(port=server.getsockname()[1])
        closed_code, lines = _run(code, bare)
        open_code, _ = _run(code, replace(bare, network=False))
    has_route = any(line.startswith("route") for line in lines)
    if closed_code != 0 and open_code == 0 and not has_route:
        return Finding("network", True, "no route, and a port of this machine was not reached")
    detail = _get_last_line(lines) if open_code == 0 else "the test could not reach a port itself"
    return Finding("network", False, detail, explain_namespaces(detail))


def _test_process_limits() -> Finding:
    """Open too many files, use too much memory and start too many processes, with and without limits."""
    bare = Layers(cgroup=False, watchdog=False)
    tests = {"files": _OPEN_FILES, "memory": _USE_MEMORY, "processes": _FORK}
    closed = {name: _run(code, bare)[0] == 0 for name, code in tests.items()}
    allowed = {name: _run(code, _NO_LIMIT)[0] == 0 for name, code in tests.items()}
    broken = [name for name in tests if closed[name] or not allowed[name]]
    if not broken:
        detail = "files, memory and processes were refused"
        return Finding("process limits", True, detail, is_required=False)
    detail = f"not limited, or not testable: {', '.join(broken)}"
    return Finding("process limits", False, detail, is_required=False)


def _test_control_group() -> Finding:
    """Let a program use too much memory, while nothing else limits it."""
    group = cgroups.create(_LIMITS)
    if group is None:
        detail = "not writable: a watchdog adds up the memory of each function instead"
        fix = "run as root with a writable /sys/fs/cgroup"
        return Finding("control group", False, detail, fix, is_required=False)
    group.remove()
    works = _end(_USE_MEMORY, _NO_WATCH).reason == "memory" and _run(_USE_MEMORY, _NO_LIMIT)[0] == 0
    detail = "ended a program with too much memory" if works else "did not end a program"
    fix = "" if works else "enable the memory controller of control groups"
    return Finding("control group", works, detail, fix, is_required=False)


def _test_watchdog() -> Finding:
    works = _end(_KEEP_MEMORY, Layers(rlimits=False, cgroup=False)).reason == "memory"
    detail = "ended a program with too much memory" if works else "did not end a program"
    return Finding("watchdog", works, detail, is_required=False)


def _test_user_ids() -> Finding:
    if os.geteuid() != 0:
        detail = "functions run with the user id of this account, in a namespace"
        return Finding("user ids", False, detail, "run as root", is_required=False)
    programs = [_start(_WAIT, Layers()) for _ in range(2)]
    try:
        started = [program.pid for program in programs if program.wait_for_start()]
        uids = {psutil.Process(pid).uids().real for pid in started}
    finally:
        for program in programs:
            program.kill()
            program.wait()
    works = len(uids) == len(programs) and 0 not in uids
    detail = f"two functions had the ids {sorted(uids)}" if works else "functions share an id"
    return Finding("user ids", works, detail, is_required=False)


def _test_reduced() -> Finding:
    """Run a program without namespaces, which must neither list a directory nor open a socket."""
    name = "without namespaces"
    try:
        ended = [_end(code, Layers(), "reduced") for code in (_SOCKET, _LIST_ROOT, _OPEN_FILES, "")]
    except (SandboxUnavailable, OSError) as error:
        fix = error.fix if isinstance(error, SandboxUnavailable) else ""
        problem = error.problem if isinstance(error, SandboxUnavailable) else str(error)
        return Finding(name, False, problem, fix, is_required=False)
    works = [program.exit_code == 0 for program in ended] == [False, False, False, True]
    detail = "`isolation: reduced` can be used" if works else "a program could do what it must not"
    return Finding(name, works, detail, is_required=False)


def _test_node() -> Finding:
    try:
        return Finding("node", True, f"for functions: {find_node()}", is_required=False)
    except SandboxUnavailable as error:
        return Finding("node", False, error.problem, error.fix, is_required=False)


def _test_operator_host() -> Finding:
    """Start a program as a worker starts its operator host, and let it open a file of the worker.

    A stack uses Landlock, and as root also an account of their own, where the machine can make one.
    """
    walls = {"Landlock": _run_in_landlock, "an account of its own": _run_as_account}
    with tempfile.NamedTemporaryFile() as file:
        opened = {n: [run(file.name, [file.name]), run(file.name, [])] for n, run in walls.items()}
    works = [name for name, found in opened.items() if found == [True, False]]
    detail = f"it cannot read files of its worker: {' and '.join(works)}"
    if "Landlock" in works:
        return Finding("operator host", True, detail, is_required=False)
    if not works:
        detail = "it has the rights of its worker, and can read the worker token"
    fix = "use Linux 5.19 or newer with Landlock enabled (lsm=…,landlock)"
    return Finding("operator host", bool(works), detail, fix, is_required=False)


def _run_in_landlock(path: str, more: list[str]) -> bool:
    """Return whether a program that Landlock restricts to some paths can open a file."""
    if not landlock.version():
        return False
    allowed = json.dumps({"read": [*_READABLE, *more], "write": ["/dev/null"]})
    numbers = [str(number) for number in (os.getpid(), 0, -1, -1)]
    command = [sys.executable, "-I", "-S", launcher.__file__, *numbers, allowed, "/"]
    return _succeeds([*command, *_open(path)])


def _run_as_account(path: str, more: list[str]) -> bool:
    """Return whether a program with an account of its own, which sees some paths, can open a file."""
    settings = {"read": [*_READABLE, *more], "write": [], "directory": "/", "command": _open(path)}
    return os.geteuid() == 0 and _succeeds(account.make_command(settings))


def _open(path: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", f"open({path!r})"]


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _start(code: str, layers: Layers, isolation: Isolation = "namespaces") -> SandboxedProcess:
    command = [bubblewrap.PYTHON, "-I", "-S", "-c", code]
    return SandboxedProcess(Program(command, limits=_LIMITS, isolation=isolation), layers)


def _end(code: str, layers: Layers, isolation: Isolation = "namespaces") -> Ended:
    return _start(code, layers, isolation).wait()


def _run(code: str, layers: Layers) -> tuple[int, list[str]]:
    """Return the exit code of a program, and the lines that it printed."""
    ended = _end(code, layers)
    return ended.exit_code, ended.output.decode("utf-8", "replace").strip().splitlines()


def _get_last_line(lines: list[str]) -> str:
    return lines[-1] if lines else "no output"


def explain_namespaces(problem: str, root: Path = Path("/")) -> str:
    """Return the fix for a machine that refuses namespaces with this problem."""
    for setting, enough in _SETTINGS.items():
        if _read_setting(root, setting) == "0":
            return f"user namespaces are switched off: sysctl {setting}={enough}"
    is_restricted = _read_setting(root, _APPARMOR) == "1"
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        options = [f"--security-opt {name}=unconfined" for name in _CONTAINER_OPTIONS]
        # enter.py makes a mount namespace as root, bubblewrap one in a user namespace.
        options += ["--cap-add SYS_ADMIN"] if "unshare:" in problem else []
        fix = f"the container forbids namespaces: start it with {' '.join(options)}"
        return f"{fix}, and on its host: sysctl {_APPARMOR}=0" if is_restricted else fix
    if "unshare:" in problem:
        return "run as an ordinary user, or as root with CAP_SYS_ADMIN"
    if is_restricted:
        return _explain_apparmor(root)
    return "allow bubblewrap to make user namespaces, or run as root"


def _find_profile(root: Path) -> str | None:
    """Return the AppArmor profile of bubblewrap that is installed, whatever its name: two would conflict."""
    for path in sorted((root / _PROFILE.lstrip("/")).parent.glob("*")):
        if path.is_file() and _BWRAP_PROFILE.search(path.read_text(errors="replace")):
            return f"/{path.relative_to(root)}"
    return None


def _read_setting(root: Path, name: str) -> str:
    path = root / "proc/sys" / name.replace(".", "/")
    return path.read_text().strip() if path.exists() else ""


def _explain_apparmor(root: Path) -> str:
    profile, steps = _find_profile(root), ["apt-get install bubblewrap"]
    if profile is None:
        profile = _PROFILE
        steps = [
            "apt-get install bubblewrap apparmor-profiles",
            f"cp /usr/share/apparmor/extra-profiles/bwrap-userns-restrict {profile}",
        ]
    steps.append(f"apparmor_parser -r {profile}")
    return "AppArmor allows user namespaces only to programs with a profile: " + "; ".join(steps)
