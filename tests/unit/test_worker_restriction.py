"""A worker gives up rights after its start, in each of its threads."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trace_etl import landlock

pytestmark = pytest.mark.skipif(not landlock.version(), reason="the kernel has no Landlock")

PROGRAM = """
import json, os, sys, threading
from trace_etl.worker import restriction
from trace_etl.worker.settings import AllowedPaths

def can_open(path):
    try:
        open(path).close()
    except PermissionError:
        return False
    return True

def report():
    can_use = os.fstat(int(os.environ["TRACE_SPAWNER_FD"])).st_size
    print(json.dumps({"pid": os.getpid(), "own": can_open(own), "other": can_open(other), "size": can_use}))

own, other, has_thread = sys.argv[1:]
if os.environ.get("TRACE_ALLOWED_PATHS") == "null":
    report()
    sys.exit(0)
if has_thread == "yes":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print(os.getpid(), flush=True)
file = os.open(own, os.O_RDONLY)
assert not os.get_inheritable(file)
allowed = AllowedPaths(read=[own, "/usr", "/lib", "/lib64", "/proc", *sys.path, sys.prefix, sys.base_prefix], write=[])
restriction.restrict(allowed, {"TRACE_SPAWNER_FD": file})
assert has_thread == "no"
report()
"""


def run(directory: Path, has_thread: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the pid of the program, and each of its reports."""
    own, other = directory / "own", directory / "other"
    own.write_text("four")
    other.write_text("")
    words = [sys.executable, "-c", PROGRAM, str(own), str(other), has_thread]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    pid, *reports = done.stdout.splitlines()
    return int(pid), [json.loads(report) for report in reports]


def test_a_process_with_one_thread_is_restricted_without_a_second_start(tmp_path: Path) -> None:
    pid, reports = run(tmp_path, has_thread="no")
    assert reports == [{"pid": pid, "own": True, "other": False, "size": 4}]


def test_a_process_with_another_thread_starts_again(tmp_path: Path) -> None:
    """The report comes from the second start, which has the same process id."""
    pid, reports = run(tmp_path, has_thread="yes")
    assert reports == [{"pid": pid, "own": True, "other": False, "size": 4}]
