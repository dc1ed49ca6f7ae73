"""Measure how long the tip stands still after `kill -9` of the worker, on a stack with default settings."""

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.harness import Result
from bench.idle import run_trace
from trace_etl.client.stack_client import RequestRejected, StackClient, connect_home
from trace_etl.devtools.devchain import DevChain, start_server
from trace_etl.lite import status
from trace_etl.lite.home import Home

ROUNDS = 3
LIMIT = 15.0  # seconds
_TIMEOUT = 300.0
_DAG = """
name: tip
jobs:
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    outputs: [hot_blocks]
    config: {start_block: 90}
publish:
  - {name: tip_blocks, from: {job: follow}}
"""


def run() -> list[Result]:
    """Kill the worker, then mine a block; the time until the block can be queried."""
    chain = DevChain(length=10_000, initial=100, txs_per_block=2)
    with (
        tempfile.TemporaryDirectory(prefix="trace-restart-") as name,
        start_server(chain) as node,
    ):
        home, dag = Path(name, "home"), Path(name, "tip.yaml")
        dag.write_text(_DAG)
        run_trace(home, "up", "--detach", "--rpc-url", node.url)
        try:
            run_trace(home, "deploy", "--no-check", str(dag))
            stack = connect_home(home)
            with stack.http:
                times = [_measure(home, stack, chain) for _ in range(ROUNDS)]
        finally:
            run_trace(home, "down")
    seconds = statistics.median(times)
    return [Result("follower_restart", seconds, LIMIT, "s", seconds / LIMIT, "<= 1.0")]


def _measure(home: Path, stack: StackClient, chain: DevChain) -> float:
    _wait(lambda: _read_tip(stack) == chain.head, "the follower is at the tip")
    worker = next(part for part in status.check(Home(home)).parts if part.name == "worker")
    began = time.monotonic()
    os.kill(worker.pid, signal.SIGKILL)
    chain.mine(1)
    _wait(lambda: _read_tip(stack) == chain.head, "the follower has the new block")
    return time.monotonic() - began


def _read_tip(stack: StackClient) -> int | None:
    try:
        [[tip]] = stack.query("SELECT max(block_number) FROM tip_blocks")["rows"]
    except RequestRejected:
        return None  # no rows yet
    return tip


def _wait(condition: Callable[[], bool], text: str) -> None:
    end = time.monotonic() + _TIMEOUT
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"not after {_TIMEOUT:g} s: {text}")
        time.sleep(0.1)
