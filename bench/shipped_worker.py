"""Run trivial tasks through one shipped worker, with its operator host, and through the load generator."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from bench import lifecycle
from bench.bench_stack import BenchStack, start_stack
from bench.harness import Result, compare

TASKS = 2000
SLOTS = 128  # as docs/how-to/runtimes.md recommends for small tasks
ROUNDS = 5
_WAKE = """
INSERT INTO queue.messages (queue, body)
SELECT 'ecs_python', jsonb_build_object('task_id', id) FROM unnest(%s::text[]) AS id
"""
_LEFT = "SELECT count(*) FROM tasks WHERE status IN ('Queued', 'Running')"
_NOT_COMPLETED = "SELECT count(*) FROM tasks WHERE status <> 'Completed'"


@contextmanager
def shipped_worker(stack: BenchStack) -> Generator[None]:
    """Run a worker process until the end of the block."""
    ready = stack.directory / "ready"
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": stack.python_path,
        "TRACE_DISPATCHER_URL": f"https://127.0.0.1:{stack.internal_port}",
        "TRACE_TLS_CA": str(stack.ca),
        "TRACE_WORKER_TOKEN_FILE": str(stack.directory / "worker"),
        "TRACE_QUEUE_DSN": stack.dsns.queue,
        "TRACE_OBJECTS_URL": (stack.directory / "objects").as_uri(),
        "TRACE_SPARK_DIR": str(stack.directory / "spark"),
        "TRACE_WORKER_ID": "bench",
        "TRACE_SLOTS": str(SLOTS),
        "TRACE_READY_FILE": str(ready),
        "TRACE_LOG_LEVEL": "warning",
    }
    process = subprocess.Popen([sys.executable, "-m", "trace_etl.worker"], env=environment)
    try:
        _wait_until_ready(process, ready)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _wait_until_ready(process: subprocess.Popen[bytes], ready: Path) -> None:
    while not (ready.exists() and "ready" in ready.read_text()):
        if process.poll() is not None:
            raise RuntimeError(f"the worker exited with code {process.returncode}")
        time.sleep(0.05)


def run_through_worker(stack: BenchStack) -> float:
    """Return tasks per second: from the first wake-up to the last completion."""
    ids = lifecycle.seed(stack, TASKS)
    with (
        psycopg.connect(stack.dsns.queue, autocommit=True) as queue,
        psycopg.connect(stack.dsns.state, autocommit=True) as state,
    ):
        began = time.perf_counter()
        queue.execute(_WAKE, [ids])
        queue.execute("NOTIFY queue_ecs_python")
        while state.execute(_LEFT).fetchall() != [(0,)]:
            time.sleep(0.02)
        seconds = time.perf_counter() - began
        [[failed]] = state.execute(_NOT_COMPLETED).fetchall()
    if failed:
        raise RuntimeError(f"{failed} of {TASKS} tasks failed")
    return TASKS / seconds


def run() -> Iterator[Result]:
    """Compare one shipped worker with one worker of the load generator, on the same stack."""
    with start_stack() as stack:
        lifecycle.deploy(stack)
        lifecycle.ours_many(stack, 1)  # warm plans and caches
        with shipped_worker(stack):
            run_through_worker(stack)
            for name, peer in (
                ("load_generator", lambda: lifecycle.ours_many(stack, 1)),
                ("single_claims", lambda: lifecycle.ours_single(stack, 16)),
            ):
                yield compare(
                    f"workers_shipped_vs_{name}",
                    lambda: run_through_worker(stack),
                    peer,
                    unit="tasks/s",
                    goal=">= 0.5",
                    rounds=ROUNDS,
                )
