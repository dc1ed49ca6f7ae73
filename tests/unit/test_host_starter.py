"""The starter shows hosts nothing that their worker may not use itself, whatever the worker asks for."""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.waiting import eventually
from trace_etl import account, landlock
from trace_etl.lite.isolation import shared_access
from trace_etl.worker.hosts.host_start import (
    HostCommand,
    HostRefused,
    HostStarter,
    RemoteHost,
    launch_starter,
)

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not landlock.version(), reason="needs root and Landlock"
)
PROGRAM = """
import json, os, signal, socket, sys

def attempt(action):
    try:
        return str(action())
    except OSError as error:
        return type(error).__name__

os.set_inheritable(int(os.environ["TRACE_HOST_FD"]), False)
secret, worker = os.environ["SECRET"], os.environ["WORKER"]
print(json.dumps({
    "uid": os.getuid(),
    "own": attempt(lambda: open("made", "w").write("x")),
    "shown": attempt(lambda: open(os.environ["SHOWN"]).read()),
    "secret": attempt(lambda: open(secret).read()),
    "root": attempt(lambda: os.listdir("/")),
    "environment": attempt(lambda: open(f"/proc/{worker}/environ").read()),
    "signal": attempt(lambda: os.kill(int(worker), 0)),
    "abstract": attempt(lambda: socket.socket(socket.AF_UNIX).connect(chr(0) + os.environ["ABSTRACT"])),
}), flush=True)
signal.pause()
"""
Start = Callable[..., RemoteHost]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package that the starter finds before the host of Trace: the program above."""
    tmp_path.chmod(0o700)
    for name in ("own", "package"):
        (tmp_path / name).mkdir()
    (tmp_path / "secret").write_text("password")
    (tmp_path / "shown").write_text("shown")
    (tmp_path / "package" / "program.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def start(package: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Start]:
    shared = shared_access(os.environ, [])
    readable = [*shared.read, str(package / "shown"), str(package / "package")]
    writable = [*shared.write, str(package / "own")]
    code = (
        "import sys; from trace_etl.worker.hosts import host_start as h;"
        f"h._PROGRAM = ({sys.executable!r}, {str(package / 'package' / 'program.py')!r});"
        "h.main(sys.argv[1:])"
    )
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    limits = json.dumps({"read": readable, "write": writable})
    process = psutil.Popen(
        [sys.executable, "-c", code, str(theirs.fileno()), limits], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    starter = HostStarter(ours)

    def start(
        read: list[str] | None = None, write: list[str] | None = None, **environment: str
    ) -> RemoteHost:
        allowed = {
            "read": [*(read or readable)],
            "write": [*shared.write, *(write or [str(package / "own")])],
        }
        command = HostCommand(environment, Path((write or [str(package / "own")])[0]), allowed)
        connection, other = socket.socketpair()
        with connection, other:
            return starter.start(command, other)

    yield start
    starter.close()
    assert process.wait() in (0, -signal.SIGKILL)  # a test may kill it


def read_report(host: RemoteHost) -> dict[str, Any]:
    return json.loads(host.output.readline())


def test_a_host_has_an_account_and_landlock_at_once(start: Start, package: Path) -> None:
    name = f"worker-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        given = {"SECRET": package / "secret", "SHOWN": package / "shown", "ABSTRACT": name}
        host = start(WORKER=str(os.getpid()), **{k: str(v) for k, v in given.items()})
        report = read_report(host)
    assert report.pop("uid") in account.UIDS
    assert report.pop("secret") in ("FileNotFoundError", "PermissionError")
    refused = dict.fromkeys(("root", "environment", "signal"), "PermissionError")
    scoped = {"abstract": "PermissionError" if landlock.version() >= 6 else "None"}
    assert report == {"own": "1", "shown": "shown", **refused, **scoped}
    host.kill()
    assert host.wait(60) == -9
    host.output.close()


@pytest.mark.parametrize("name", ["secret", "", "own/../secret", "own/link"])
def test_a_path_that_the_worker_may_not_use_is_refused(
    start: Start, package: Path, name: str
) -> None:
    (package / "own" / "link").symlink_to(package / "secret")
    with pytest.raises(HostRefused, match="the worker may not use"):
        start(read=[str(package / name)])
    with pytest.raises(HostRefused, match="the worker may not use"):
        start(write=[str(package / name)])
    with pytest.raises(HostRefused, match="the worker may not use"):
        start(write=[str(package / "shown")])


def test_no_variable_of_the_worker_changes_what_runs_as_root(start: Start, package: Path) -> None:
    made = package / "own" / "sitecustomize.py"
    made.write_text("import os; open(os.environ['MARK'], 'a').write(f'{os.getuid()} ')")
    given = {"PYTHONPATH": package / "own", "MARK": package / "own" / "mark", "SECRET": "/"}
    host = start(
        WORKER="1", SHOWN="/", ABSTRACT="x", **{name: str(value) for name, value in given.items()}
    )
    uid = read_report(host)["uid"]
    assert (package / "own" / "mark").read_text() == f"{uid} "
    host.kill()
    host.wait(60)
    host.output.close()


def test_the_starter_ends_with_its_worker() -> None:
    connection, process = launch_starter([], [])
    connection.close()
    assert process.wait() == 0


def test_a_killed_starter_takes_its_hosts_with_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[int] = []
    host = start(WORKER="1", SHOWN="/", ABSTRACT="x", SECRET="/")
    read_report(host)
    starter, kill = psutil.Process(host.pid).ppid(), os.kill
    monkeypatch.setattr(os, "kill", lambda pid, sent: signals.append(sent))
    kill(starter, signal.SIGKILL)
    assert host.wait(60) == -9
    eventually(lambda: not Path(f"/proc/{host.pid}").exists())
    eventually(lambda: signals == [signal.SIGTERM], "the worker is told to stop")
    host.output.close()
