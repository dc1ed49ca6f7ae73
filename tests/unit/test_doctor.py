"""`trace doctor` notices each missing layer, and names the fix."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from trace_etl.sandbox import bubblewrap, doctor
from trace_etl.sandbox.bubblewrap import Shown
from trace_etl.sandbox.errors import SandboxUnavailable
from trace_etl.sandbox.private_view import require_reachable
from trace_etl.sandbox.process import Layers, Program, SandboxedProcess

_PROFILE = "/etc/apparmor.d/bwrap-userns-restrict"
_OFF = {"proc/sys/user/max_user_namespaces": "0\n"}
_CONTAINER = [
    f"--security-opt {name}=unconfined" for name in ("seccomp", "apparmor", "systempaths")
]
_RESTRICTED = {"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}


@pytest.mark.usefixtures("sandbox")
def test_every_layer_of_this_machine_is_tested() -> None:
    findings = {finding.layer: finding for finding in doctor.examine_sandbox()}
    names = ["bubblewrap", "namespaces", "call filter", "landlock", "network", "process limits"]
    assert list(findings) == [
        *(*names, "control group", "watchdog", "user ids", "without namespaces", "node"),
        "operator host",
    ]
    missing = {name for name, finding in findings.items() if not finding.works}
    optional = {"landlock", "control group", "user ids", "without namespaces", "node"}
    assert missing <= {*optional, "operator host"}
    assert all(findings[name].fix for name in missing)


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    ("off", "test"),
    [
        ("ipc", doctor._test_namespaces),
        ("host_name", doctor._test_namespaces),
        ("seccomp", doctor._test_call_filter),
        ("landlock", doctor._test_landlock),
        ("network", doctor._test_network),
        ("rlimits", doctor._test_process_limits),
        ("cgroup", doctor._test_control_group),
        ("watchdog", doctor._test_watchdog),
        ("own_uid", doctor._test_user_ids),
    ],
)
def test_a_layer_that_is_off_is_noticed(
    off: str, test: Callable[[], doctor.Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = test()
    if off in ("own_uid", "cgroup") and "run as root" in finding.fix:
        pytest.skip(finding.detail)
    assert finding.works

    def start(program: Program, layers: Layers) -> SandboxedProcess:
        # Only the watchdog would end its program earlier.
        limits = replace(program.limits, wall_seconds=5) if off == "watchdog" else program.limits
        return SandboxedProcess(replace(program, limits=limits), replace(layers, **{off: False}))

    monkeypatch.setattr(doctor, "SandboxedProcess", start)
    assert not test().works


@pytest.mark.skipif(os.geteuid() != 0, reason="`reduced` needs root")
@pytest.mark.parametrize("off", ["seccomp", "landlock", "rlimits"])
def test_a_layer_without_namespaces_that_is_off_is_noticed(
    off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "PYTHON", str(Path("/usr/bin/python3").resolve()))
    files = [*bubblewrap.system_files(), Shown(Path(bubblewrap.PYTHON), bubblewrap.PYTHON)]
    monkeypatch.setattr(bubblewrap, "system_files", lambda: files)
    try:
        require_reachable(bubblewrap.PYTHON)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    assert doctor._test_reduced().works
    monkeypatch.setattr(
        doctor,
        "SandboxedProcess",
        lambda program, layers: SandboxedProcess(program, replace(layers, **{off: False})),
    )
    assert not doctor._test_reduced().works


_WITHOUT_NAMESPACES = """
import ctypes, os, sys
from pathlib import Path
if "--inside" not in sys.argv:
    user, group = os.getuid(), os.getgid()
    assert ctypes.CDLL(None).unshare(0x10000000) == 0
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"1000 {user} 1")
    Path("/proc/self/gid_map").write_text(f"1000 {group} 1")
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "--inside"])
from trace_etl.sandbox import doctor
for finding in doctor.examine_required():
    print(finding.layer, finding.works, finding.fix, sep="|")
"""


@pytest.mark.usefixtures("sandbox")
def test_the_fix_names_the_setting_that_forbids_user_namespaces() -> None:
    command = [sys.executable, "-c", _WITHOUT_NAMESPACES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fix = "user namespaces are switched off: sysctl user.max_user_namespaces=10000"
    assert done.stdout.splitlines() == ["bubblewrap|True|", f"namespaces|False|{fix}"]


_IN_ENTER = "unshare: Operation not permitted"


@pytest.mark.parametrize(
    ("files", "problem", "words"),
    [
        ({}, "", ["run as root"]),
        ({}, _IN_ENTER, ["as an ordinary user", "CAP_SYS_ADMIN"]),
        (_OFF, "", ["sysctl user.max_user_namespaces=10000"]),
        ({**_OFF, ".dockerenv": ""}, "", ["sysctl user.max_user_namespaces=10000"]),
        (
            {"proc/sys/kernel/unprivileged_userns_clone": "0\n"},
            "",
            ["sysctl kernel.unprivileged_userns_clone=1"],
        ),
        (
            _RESTRICTED,
            "",
            [
                "apt-get install bubblewrap apparmor-profiles",
                f"cp /usr/share/apparmor/extra-profiles/bwrap-userns-restrict {_PROFILE}",
                f"apparmor_parser -r {_PROFILE}",
            ],
        ),
        (
            {**_RESTRICTED, _PROFILE.lstrip("/"): "profile bwrap /usr/bin/bwrap {"},
            "",
            ["apt-get install bubblewrap;", f"apparmor_parser -r {_PROFILE}"],
        ),
        (
            {**_RESTRICTED, "etc/apparmor.d/bwrap": "# bwrap\n/usr/bin/bwrap flags=(unconfined) {"},
            "",
            ["apt-get install bubblewrap;", "apparmor_parser -r /etc/apparmor.d/bwrap"],
        ),
        ({".dockerenv": ""}, "", _CONTAINER),
        ({".dockerenv": ""}, _IN_ENTER, [*_CONTAINER, "--cap-add SYS_ADMIN"]),
        (
            {**_RESTRICTED, "run/.containerenv": ""},
            "",
            [*_CONTAINER, "sysctl kernel.apparmor_restrict_unprivileged_userns=0"],
        ),
    ],
)
def test_the_fix_for_missing_namespaces_names_the_file_or_the_option(
    files: dict[str, str], problem: str, words: list[str], tmp_path: Path
) -> None:
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    fix = doctor.explain_namespaces(problem, tmp_path)
    assert [word for word in words if word not in fix] == []
    assert ("--cap-add" in fix) == ("--cap-add SYS_ADMIN" in words)
