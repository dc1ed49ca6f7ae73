"""`trace demo` as a new user runs it: it ends with a table and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from support.waiting import eventually

COMMAND = [sys.executable, "-c", "from trace_etl.cli.main import main; main()", "demo"]
SMALL = ["--blocks", "200", "--range-size", "100"]


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """The directory where the demo creates its home. No process may still use it afterwards."""
    directory = tmp_path_factory.mktemp("d")  # short: the path of a socket has at most 108 bytes
    yield directory
    assert processes_using(directory) == []


def processes_using(directory: Path) -> list[str]:
    found: list[str] = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or [])
        if str(directory) in command and process.pid != os.getpid():
            found.append(command)
    return found


@contextmanager
def running_demo(scratch: Path, *command: str) -> "Generator[subprocess.Popen[str]]":
    demo = subprocess.Popen(
        [*COMMAND, *command],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with demo:
        try:
            yield demo
        finally:
            if demo.poll() is None:
                demo.terminate()


def test_the_demo_prints_the_table_and_leaves_nothing_behind(scratch: Path) -> None:
    with running_demo(scratch, *SMALL) as demo:
        text = demo.communicate(timeout=360)[0]
    assert demo.returncode == 0, text
    rows = re.findall(r"^0x[0-9a-f]{40} +(\d+) +(\d+)$", text, re.MULTILINE)
    assert len(rows) == 10
    counts = [int(transfers) for transfers, _ in rows]
    assert counts == sorted(counts, reverse=True) and counts[-1] > 0
    for part in ("stack up", "Spark start", "ingest", "receivers", "final ranking", "total"):
        assert re.search(rf"^{part} +\d", text, re.MULTILINE), part
    assert "What to try next" in text
    assert list(scratch.glob("trace-demo-*")) == []


def wait_for_line(demo: "subprocess.Popen[str]", start: str) -> None:
    assert demo.stdout is not None
    assert any(line.startswith(start) for line in demo.stdout)


def test_a_demo_that_is_interrupted_while_it_starts_cleans_up(scratch: Path) -> None:
    with running_demo(scratch, *SMALL) as demo:
        wait_for_line(demo, "Starting a stack")
        eventually(lambda: list(scratch.glob("trace-demo-*/run/stack.json")), "services start")
        demo.send_signal(signal.SIGTERM)
        # Each process has a grace period to stop. On a busy machine they add up to a minute.
        rest = demo.communicate(timeout=150)[0]
    assert demo.returncode == 130, rest
    assert "Interrupted." in rest
    assert list(scratch.glob("trace-demo-*")) == []


def test_a_demo_whose_terminal_is_closed_cleans_up(scratch: Path) -> None:
    with running_demo(scratch, *SMALL) as demo:
        wait_for_line(demo, "Deployed")
        assert demo.stdout is not None
        demo.stdout.close()  # every print fails from here on
        demo.send_signal(signal.SIGHUP)
        demo.wait(150)
    assert list(scratch.glob("trace-demo-*")) == []


def test_an_unreachable_node_is_reported_before_anything_starts(scratch: Path) -> None:
    with running_demo(scratch, "--rpc-url", "http://127.0.0.1:1") as demo:
        text = demo.communicate(timeout=120)[0]
    assert demo.returncode == 1
    assert text.startswith("error: --rpc-url: ") and "refused" in text
    assert list(scratch.iterdir()) == []
