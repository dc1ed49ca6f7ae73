"""Test each layer of the sandbox for real, on this machine."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trace_etl import landlock, launcher
from trace_etl.sandbox import bubblewrap, cgroups, seccomp
from trace_etl.sandbox.errors import SandboxUnavailable
from trace_etl.sandbox.limits import Limits
from trace_etl.sandbox.node import find_node
from trace_etl.sandbox.process import Layers, Program, SandboxedProcess

_SOCKET = "import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM)"
_LIST_ROOT = "import os; os.listdir('/')"
_READABLE = [*("/usr", "/lib", "/lib64", "/bin", "/etc", "/proc"), sys.prefix, sys.base_prefix]
_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")


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
    namespaces = _test(_test_namespaces)
    findings = [_test(_test_bubblewrap), namespaces]
    if namespaces.works:
        findings += [_test(_test_call_filter), _test(_test_landlock)]
    findings += [_test_control_group(), _test_user_ids(), _test_node()]
    return [*findings, _test(_test_operator_host)]


def _test(test: Callable[[], Finding]) -> Finding:
    try:
        return test()
    except SandboxUnavailable as error:
        return Finding(test.__name__.removeprefix("_test_"), False, error.problem, error.fix)
    except OSError as error:
        return Finding(test.__name__.removeprefix("_test_"), False, str(error))


def _test_bubblewrap() -> Finding:
    binary = bubblewrap.find_bwrap()
    origin = "the Python package" if binary.libraries else "the system"
    return Finding("bubblewrap", True, f"from {origin}")


def _test_namespaces() -> Finding:
    code, output = _run("print('ok')", Layers(seccomp=False, landlock=False, cgroup=False))
    if code == 0:
        return Finding("namespaces", True, "user, mount, process, network, IPC and host name")
    return Finding("namespaces", False, output, explain_namespaces())


def _test_call_filter() -> Finding:
    if not seccomp.is_supported():
        rule = "there is no filter for this processor"
        return Finding("call filter", False, rule, "use a machine with x86-64 or ARM64")
    open_code, _ = _run(_SOCKET, Layers(seccomp=False))
    closed_code, output = _run(_SOCKET, Layers())
    works = open_code == 0 and closed_code != 0 and "not supported" in output
    fix = "" if works else "use a kernel with CONFIG_SECCOMP_FILTER"
    return Finding("call filter", works, "a socket was refused" if works else output, fix)


def _test_landlock() -> Finding:
    if not landlock.version():
        fix = "use Linux 5.19 or newer with Landlock enabled (lsm=…,landlock)"
        return Finding("landlock", False, "the kernel has none", fix, is_required=False)
    code, output = _run(_LIST_ROOT, Layers())
    works = code != 0 and "PermissionError" in output
    detail = f"version {landlock.version()}: a read was refused" if works else output
    return Finding("landlock", works, detail, is_required=False)


def _test_control_group() -> Finding:
    group = cgroups.create(Limits())
    if group is None:
        detail = "not writable: a watchdog adds up the memory of each function instead"
        return Finding("control group", False, detail, "run as root", is_required=False)
    group.remove()
    return Finding("control group", True, "limits memory and processes", is_required=False)


def _test_user_ids() -> Finding:
    if os.geteuid() == 0:
        return Finding("user ids", True, "each function gets its own", is_required=False)
    detail = "functions run with the user id of this account, in a namespace"
    return Finding("user ids", False, detail, "run as root", is_required=False)


def _test_node() -> Finding:
    try:
        return Finding("node", True, f"for functions: {find_node()}", is_required=False)
    except SandboxUnavailable as error:
        return Finding("node", False, error.problem, error.fix, is_required=False)


def _test_operator_host() -> Finding:
    """Start a program as a worker starts its operator host, and let it open a file of the worker."""
    name = "operator host"
    if not landlock.version():
        detail = "it has the rights of its worker, and can read the worker token"
        fix = "use Linux 5.19 or newer with Landlock enabled (lsm=…,landlock)"
        return Finding(name, False, detail, fix, is_required=False)
    with tempfile.NamedTemporaryFile() as file:
        opened = [_run_as_host(file.name, [*_READABLE, *more]) for more in ([file.name], [])]
    works = opened == [True, False]
    detail = "it cannot read files of its worker" if works else f"expected [True, False]: {opened}"
    return Finding(name, works, detail, is_required=False)


def _run_as_host(path: str, read: list[str]) -> bool:
    """Return whether a program with these rights can open a file."""
    allowed = json.dumps({"read": read, "write": ["/dev/null"]})
    numbers = [str(number) for number in (os.getpid(), 0, -1, -1)]
    command = [sys.executable, "-I", "-S", launcher.__file__, *numbers, allowed, "/"]
    command += [sys.executable, "-I", "-S", "-c", f"open({path!r})"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _run(code: str, layers: Layers) -> tuple[int, str]:
    command = [bubblewrap.PYTHON, "-I", "-S", "-c", code]
    ended = SandboxedProcess(Program(command, limits=Limits(wall_seconds=30)), layers).wait()
    lines = ended.output.decode("utf-8", "replace").strip().splitlines()
    return ended.exit_code, lines[-1] if lines else ""


def explain_namespaces() -> str:
    """Return the fix for a machine that refuses user namespaces."""
    if _APPARMOR.exists() and _APPARMOR.read_text().strip() == "1":
        return (
            "AppArmor restricts user namespaces: install the system's package `bubblewrap` and its "
            "profile (`apparmor-profiles`), which allows them to /usr/bin/bwrap"
        )
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return (
            "the container forbids namespaces: start it with a seccomp profile that allows clone, "
            "unshare and mount, such as --security-opt seccomp=PROFILE"
        )
    return "allow user namespaces: sysctl user.max_user_namespaces must be above 0"
