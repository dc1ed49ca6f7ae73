"""Where Landlock is off, a root worker runs its operator host as another account with a view of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trace_etl import account
from trace_etl.lite.isolation import shared_access

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
PROGRAM = """
import json, os, pwd, sys

def attempt(action):
    try:
        return action()
    except OSError as error:
        return type(error).__name__

shown, hidden, own, parent = sys.argv[1:]
made = os.path.join(own, "made")
print(json.dumps({
    "uid": os.getuid(),
    "name": pwd.getpwuid(os.getuid()).pw_name,
    "groups": os.getgroups(),
    "shown": attempt(lambda: open(shown).read()),
    "hidden": attempt(lambda: open(hidden).read()),
    "change": attempt(lambda: open(shown, "w")),
    "memory": attempt(lambda: open(f"/proc/{parent}/mem", "rb")),
    "environment": attempt(lambda: open(f"/proc/{parent}/environ").read()),
    "signal": attempt(lambda: os.kill(int(parent), 0)),
    "made": attempt(lambda: open(made, "w").write("x")),
    "user": attempt(lambda: os.setuid(0)),
}))
"""


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A directory of root with files that only root can read."""
    tmp_path.chmod(0o700)
    for name in ("shown", "hidden"):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "own").mkdir(mode=0o700)
    return tmp_path


def run(private: Path) -> dict[str, Any]:
    access = shared_access(os.environ, [])
    names = [str(private / name) for name in ("shown", "hidden", "own")]
    settings: dict[str, object] = {
        "read": [*access.read, names[0]],
        "write": [*access.write, names[2]],
        "directory": names[2],
        "command": [sys.executable, "-c", PROGRAM, *names, str(os.getpid())],
    }
    # The supervisor of a stack sets such a mask, too.
    command = account.make_command(settings)
    done = subprocess.run(command, capture_output=True, text=True, umask=0o077)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_host_with_an_account_of_its_own_sees_its_own_files_only(private: Path) -> None:
    seen = run(private)
    assert seen.pop("uid") in account.UIDS
    refused = dict.fromkeys(("memory", "environment", "signal", "user"), "PermissionError")
    assert seen == {
        **refused,
        "name": "trace-host",
        "groups": [],
        "shown": "shown",
        "hidden": "FileNotFoundError",
        "change": "OSError",  # the file system is read-only
        "made": 1,
    }
    made = (private / "own" / "made").stat()
    assert (made.st_uid, made.st_gid) == (0, 0)  # for the services of the stack
    assert (private / "shown").read_text() == "shown"


def test_two_hosts_have_different_accounts(private: Path) -> None:
    access = shared_access(os.environ, [])
    settings: dict[str, object] = {
        "read": list(access.read),
        "write": [str(private / "own")],
        "directory": str(private / "own"),
        "command": [sys.executable, "-c", "import os; print(os.getuid(), flush=True); input()"],
    }
    hosts = [
        subprocess.Popen(
            account.make_command(settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    uids = [host.stdout.readline() for host in hosts if host.stdout is not None]
    for host in hosts:
        host.communicate("\n")
    assert len(set(uids)) == 2 and all(int(uid) in account.UIDS for uid in uids)


def test_a_machine_without_accounts_for_hosts_names_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings: dict[str, object] = {"read": [], "write": [], "directory": "/nowhere"}
    assert "nowhere" in (account.explain_missing(settings) or "")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert account.explain_missing(settings) == "only root can change the user"
