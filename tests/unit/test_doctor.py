"""`trace doctor` notices each missing layer, and names the fix."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from trace_etl.sandbox import doctor
from trace_etl.sandbox.process import Layers, Program, SandboxedProcess

_PROFILE = "/etc/apparmor.d/bwrap-userns-restrict"
_RESTRICTED = {"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}


@pytest.mark.usefixtures("sandbox")
def test_every_layer_of_this_machine_is_tested() -> None:
    findings = {finding.layer: finding for finding in doctor.examine_sandbox()}
    names = ["bubblewrap", "namespaces", "call filter", "landlock", "network", "process limits"]
    assert list(findings) == [
        *(*names, "control group", "watchdog", "user ids", "node", "operator host")
    ]
    missing = {name for name, finding in findings.items() if not finding.works}
    assert missing <= {"landlock", "control group", "user ids", "node", "operator host"}
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


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ["sysctl user.max_user_namespaces"]),
        (
            _RESTRICTED,
            [
                "apt-get install bubblewrap apparmor-profiles",
                f"cp /usr/share/apparmor/extra-profiles/bwrap-userns-restrict {_PROFILE}",
                f"apparmor_parser -r {_PROFILE}",
            ],
        ),
        (
            {**_RESTRICTED, _PROFILE.lstrip("/"): ""},
            ["apt-get install bubblewrap;", f"apparmor_parser -r {_PROFILE}"],
        ),
        (
            {".dockerenv": ""},
            [
                "--security-opt seccomp=unconfined",
                "--security-opt apparmor=unconfined",
                "--security-opt systempaths=unconfined",
            ],
        ),
        (
            {**_RESTRICTED, "run/.containerenv": ""},
            ["seccomp=unconfined", "sysctl kernel.apparmor_restrict_unprivileged_userns=0"],
        ),
    ],
)
def test_the_fix_for_missing_namespaces_is_exact(
    files: dict[str, str], words: list[str], tmp_path: Path
) -> None:
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    fix = doctor.explain_namespaces(tmp_path)
    assert [word for word in words if word not in fix] == []
