"""`trace demo` as a stranger runs it: a table at the end, and nothing left behind."""

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

COMMAND = [sys.executable, "-c", "from trace_etl.cli.main import main; main()", "demo"]
SMALL = ["--blocks", "200", "--range-size", "100"]


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Where the demo makes its home; whatever still runs there afterwards is a failure."""
    place = tmp_path_factory.mktemp("d")  # short: a socket's path has 108 bytes
    yield place
    assert left_behind(place) == []


def left_behind(place: Path) -> list[str]:
    found: list[str] = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if str(place) in words and process.pid != os.getpid():
            found.append(words)
    return found


@contextmanager
def started(scratch: Path, *words: str) -> "Generator[subprocess.Popen[str]]":
    demo = subprocess.Popen(
        [*COMMAND, *words],
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


@pytest.mark.timeout(400)
def test_the_demo_ends_with_the_table_and_leaves_nothing_behind(scratch: Path) -> None:
    with started(scratch, *SMALL) as demo:
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


@pytest.mark.timeout(400)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_cleans_up(scratch: Path, sent: signal.Signals) -> None:
    with started(scratch, *SMALL) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("Deployed"):
                break
        demo.send_signal(sent)
        # Each part has its seconds to end by itself: on a busy machine they add up to a minute.
        rest = demo.communicate(timeout=150)[0]
    assert demo.returncode == 130, rest
    assert "Interrupted." in rest
    assert list(scratch.glob("trace-demo-*")) == []


def test_an_unreachable_node_is_named_before_anything_is_started(scratch: Path) -> None:
    with started(scratch, "--rpc-url", "http://127.0.0.1:1") as demo:
        text = demo.communicate(timeout=120)[0]
    assert demo.returncode == 1
    assert text.startswith("error: --rpc-url: ") and "refused" in text
    assert list(scratch.iterdir()) == []
