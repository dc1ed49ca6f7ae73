"""Measure the CPU share of an idle stack."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench.harness import Result
from trace_etl.lite.processes.probes import read_ready_file

SECONDS = 30.0
LIMIT = 0.02  # of one core


def run_trace(home: Path, *command: str) -> None:
    subprocess.run(
        [str(Path(sys.executable).with_name("trace")), *command],
        env={**os.environ, "TRACE_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        check=True,
    )


def _read_cpu_seconds(supervisor: psutil.Process) -> dict[int, float]:
    """Return the CPU seconds of every process of the stack."""
    processes = [supervisor, *supervisor.children(recursive=True)]
    return {p.pid: sum(p.cpu_times()[:2]) for p in processes}


def _wait_until_warm(home: Path, supervisor: psutil.Process) -> None:
    """Wait until Spark runs in every worker and its warm-up has ended."""
    while not (ready := list((home / "run").glob("worker*/ready"))) or any(
        read_ready_file(path).get("spark") != "ready" for path in ready
    ):
        time.sleep(0.5)
    before = _read_cpu_seconds(supervisor)
    while True:
        time.sleep(3)
        now = _read_cpu_seconds(supervisor)
        if sum(now.values()) - sum(before.values()) < 0.3:
            return
        before = now


def run() -> list[Result]:
    """Divide the CPU time of an idle stack by the wall-clock time."""
    with tempfile.TemporaryDirectory(prefix="trace-idle-") as name:
        home = Path(name)
        run_trace(home, "up", "--detach")
        try:
            connection = json.loads((home / "connection.json").read_text())
            supervisor = psutil.Process(connection["supervisor_pid"])
            _wait_until_warm(home, supervisor)
            before = _read_cpu_seconds(supervisor)
            time.sleep(SECONDS)
            spent = sum(
                t - before.get(pid, 0.0) for pid, t in _read_cpu_seconds(supervisor).items()
            )
        finally:
            run_trace(home, "down")
    share = spent / SECONDS
    return [Result("idle_stack_cpu", share, LIMIT, "cores", share / LIMIT, "<= 1.0")]
