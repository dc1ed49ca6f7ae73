"""Landlock restricts a process to the given paths. Each case runs in its own process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trace_etl import landlock

pytestmark = pytest.mark.skipif(not landlock.version(), reason="the kernel has no Landlock")

_SYSTEM = ["/usr", "/lib", "/lib64", "/bin", "/etc", "/dev", "/proc", sys.prefix, sys.base_prefix]
_SYSTEM += [str(Path(landlock.__file__).parent)]
_CHILD = """
import json, os, subprocess, sys
from trace_etl import landlock
rules, actions = json.loads(sys.argv[1])
landlock.restrict(**rules)
def attempt(action):
    try:
        exec(action)
    except OSError as error:
        return error.strerror
    return "allowed"
print(json.dumps([attempt(action) for action in actions]))
"""


def outcomes(rules: dict[str, object], *actions: str) -> list[str]:
    """Run the actions in a restricted process; return `allowed` or the error of each."""
    result = subprocess.run(
        [sys.executable, "-c", _CHILD, json.dumps([rules, actions])],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(result.stdout)


def test_a_process_reads_and_writes_only_below_the_given_paths(tmp_path: Path) -> None:
    for name in ("own", "shared", "other"):
        (tmp_path / name / "below").mkdir(parents=True)
        (tmp_path / name / "file").write_text("old")
    own, shared, other = (tmp_path / name for name in ("own", "shared", "other"))
    rules = {"read": [*_SYSTEM, str(own), str(shared)], "write": [str(own), str(tmp_path / "no")]}
    assert outcomes(
        rules,
        f"open({str(own / 'file')!r}).read()",
        f"open({str(own / 'new')!r}, 'w').write('x')",
        f"os.rename({str(own / 'new')!r}, {str(own / 'below' / 'new')!r})",
        f"open({str(shared / 'file')!r}).read()",
        f"open({str(shared / 'new')!r}, 'w')",
        f"os.truncate({str(shared / 'file')!r}, 0)",
        f"open({str(other / 'file')!r}).read()",
        f"os.listdir({str(other)!r})",
        f"os.unlink({str(other / 'file')!r})",
        f"open('/proc/{os.getpid()}/environ').read()",
        "open('/proc/self/environ').read()",
    ) == ["allowed"] * 4 + ["Permission denied"] * 6 + ["allowed"]


def test_a_process_executes_only_the_given_programs_and_still_moves_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    libraries = ["/usr/lib", "/lib", "/lib64"]
    assert outcomes(
        {"execute": ["/bin/true", *libraries]},
        "subprocess.run(['/bin/true'], check=True)",
        "subprocess.run(['/bin/sh', '-c', 'true'], check=True)",
        f"os.rename({str(tmp_path / 'a' / 'file')!r}, {str(tmp_path / 'b' / 'file')!r})",
        f"open({str(tmp_path / 'b' / 'file')!r}, 'a').write('y')",
    ) == ["allowed", "Permission denied", "allowed", "allowed"]


@pytest.mark.skipif(landlock.version() < 6, reason="the kernel cannot restrict signals")
def test_a_scoped_process_signals_only_its_own_children() -> None:
    assert outcomes(
        {"scoped": True},
        f"os.kill({os.getpid()}, 0)",
        "child = subprocess.Popen(['/bin/sleep', '60']); child.kill(); child.wait()",
    ) == ["Operation not permitted", "allowed"]
