"""The stack runs as an ordinary user, when the tests run as root."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from trace_etl import landlock
from trace_etl.lite.processes import probes

UNPRIVILEGED = 65534
SUPPORT = Path(__file__).parents[1] / "support"
SOURCE = Path(__file__).parents[2] / "src"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="not root: every other test runs as an ordinary user already"
)


@dataclass(frozen=True)
class User:
    """An unprivileged user with a home and a Python interpreter of the same version."""

    home: Path
    python: str

    @property
    def environment(self) -> dict[str, str]:
        paths = [str(SOURCE), *(path for path in sys.path if path.endswith("site-packages"))]
        return {
            "HOME": str(self.home),
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def popen(self, *words: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.home,
            env=self.environment,
            user=UNPRIVILEGED,
            group=UNPRIVILEGED,
            extra_groups=[],
        )

    def trace(self, *words: str) -> tuple[int, str]:
        process = self.popen("-c", "from trace_etl.cli.main import main; main()", *words)
        output, _ = process.communicate()
        return process.returncode, output


@pytest.fixture
def user() -> Generator[User]:
    home = Path(tempfile.mkdtemp(prefix="trace-user-", dir="/tmp"))
    os.chown(home, UNPRIVILEGED, UNPRIVILEGED)
    for python in (sys.executable, shutil.which("python3", path="/usr/bin:/bin")):
        if python and can_import_trace(User(home, python)):
            yield User(home, python)
            break
    else:
        pytest.skip("no interpreter of this version that another user can run")
    shutil.rmtree(home)


def can_import_trace(user: User) -> bool:
    same = f"import sys; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
    try:
        process = user.popen("-c", f"import trace_etl, psycopg, psutil; {same}")
    except PermissionError:
        return False
    process.communicate()
    return process.returncode == 0


def test_an_ordinary_user_runs_the_stack_in_the_default_home(user: User) -> None:
    process = user.popen(SUPPORT / "services/stub_stack.py", user.home / ".trace", "{}")
    assert process.stdout
    output = ""
    while "up\n" not in output.splitlines(keepends=True):
        line = process.stdout.readline()
        assert line, output
        output += line
    code, status = user.trace("status", "--json")
    assert code == 0, status
    expected = "landlock" if landlock.version() else "none"
    assert {part["isolation"] for part in json.loads(status)["parts"]} == {expected}
    connection = json.loads((user.home / ".trace" / "connection.json").read_text())
    assert probes.is_healthy(connection["api_url"], connection["ca"])
    descendants = psutil.Process(process.pid).children(recursive=True)
    assert {member.uids().effective for member in descendants} == {UNPRIVILEGED}
    shown = [member.cmdline()[-2:] for member in descendants]
    assert shown.count(["-m", "support.services.stub_service"]) == 7  # those that were forked
    assert not (user.home / ".trace" / "postgres").is_symlink()
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 0
    assert user.trace("down", "--purge", "--yes")[0] == 0
    assert list(user.home.iterdir()) == []


def test_a_home_without_write_permission_is_reported_with_what_to_do(
    user: User, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    for command in ("up", "status", "down"):
        code, output = user.trace(command, "--home", str(theirs))
        assert code == 1, output
        assert str(theirs) in output
        assert "Permission denied" in output
        assert "TRACE_HOME" in output
        assert "Traceback" not in output
