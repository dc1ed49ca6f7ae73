"""Compare the task lifecycle with other queues on the same Postgres, with durable commits."""

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import uvloop

from bench import load
from bench.bench_stack import BenchStack, start_stack
from bench.harness import Result, compare
from trace_etl.lite.postgres import binaries

TASKS = 3000
WORKERS = (1, 16, 64)
BATCH = 10  # pgqueuer's default batch; our workers claim batches of the same size
CLAIMS = 4  # concurrent claims of one of our workers
ROUNDS = 7  # a run takes a second or two, and other load on the machine may last as long

_DAG = """
name: bench
jobs:
  - {name: request, activation: source, source: {kind: manual}, outputs: [ranges]}
  - name: work
    operator: trivial
    runtime: ecs_python
    inputs: [{from: {job: request}}]
    outputs: [done]
"""

_SEED = """
INSERT INTO tasks (org_id, job_id, revision_id, runtime, dedupe_key, max_attempts,
                   timeout_seconds, lease_seconds)
SELECT j.org_id, j.job_id, j.revision_id, 'ecs_python', %(mark)s || n, 3, 3600, 120
  FROM jobs j, generate_series(1, %(count)s) n WHERE j.name = 'work'
RETURNING task_id
"""


def deploy(stack: BenchStack) -> None:
    """Deploy a job whose tasks can be inserted."""
    stack.post("/v1/dags", {"text": _DAG})


def seed(stack: BenchStack, count: int) -> list[str]:
    """Insert queued tasks that workers can claim."""
    rows = stack.execute(_SEED, {"mark": uuid4().hex, "count": count})
    stack.execute("ANALYZE tasks")
    stack.settle()
    return [str(row[0]) for row in rows]


class Worker:
    """A worker with four concurrent claims of ten tasks that does not wait for its completions.

    This matches pgqueuer, which has no limit of running tasks and reports ten finished jobs together.
    """

    def __init__(self, stack: BenchStack, name: str) -> None:
        self._made = stack
        self._name = name
        self._halves: list[tuple[load.Connection, load.Connection]] = []

    async def connect(self) -> None:
        port, ca = self._made.internal_port, self._made.ca
        self._halves = [
            (await load.connect(port, ca), await load.connect(port, ca)) for _ in range(CLAIMS)
        ]

    async def drain(self) -> None:
        """Claim and complete until no task is left."""
        await asyncio.gather(*(self._drain(*half) for half in self._halves))

    async def _drain(self, claimer: load.Connection, reporter: load.Connection) -> None:
        token = self._made.worker_token
        reported = asyncio.create_task(asyncio.sleep(0))
        while claimed := await load.claim_many(claimer, token, "ecs_python", self._name, BATCH):
            await reported
            reported = asyncio.create_task(load.complete_many(reporter, token, claimed))
        await reported

    def close(self) -> None:
        for half in self._halves:
            for conn in half:
                conn.close()


class SingleWorker:
    """A worker with one slot that claims by id and completes one task after the other."""

    def __init__(self, stack: BenchStack, name: str, ids: list[str]) -> None:
        self._made = stack
        self._name = name
        self._ids = ids

    async def connect(self) -> None:
        self._conn = await load.connect(self._made.internal_port, self._made.ca)

    async def drain(self) -> None:
        token = self._made.worker_token
        await load.SequentialLoad(self._conn, token, self._name, self._ids).drain()

    def close(self) -> None:
        self._conn.close()


async def _race(workers: Sequence[Worker | SingleWorker], count: int) -> float:
    """Return tasks per second. As for pgqueuer, connections are opened before the measurement."""
    for worker in workers:
        await worker.connect()
    began = time.perf_counter()
    await asyncio.gather(*(worker.drain() for worker in workers))
    seconds = time.perf_counter() - began
    for worker in workers:
        worker.close()
    return count / seconds


def ours_many(stack: BenchStack, workers: int) -> float:
    """Return tasks per second with batched claims."""
    seed(stack, TASKS)
    return uvloop.run(_race([Worker(stack, f"w{n}") for n in range(workers)], TASKS))


def ours_single(stack: BenchStack, workers: int) -> float:
    """Return tasks per second with one claim and one completion per task."""
    count = TASKS if workers > 1 else TASKS // 4
    ids = seed(stack, count)
    return uvloop.run(_race([SingleWorker(stack, f"w{n}", ids) for n in range(workers)], count))


def pgqueuer(stack: BenchStack, workers: int) -> float:
    """Return jobs per second of pgqueuer in a separate process, with the same numbers."""
    result = subprocess.run(
        [sys.executable, "-m", "bench.peer_pgqueuer", stack.dsns.state, str(workers), str(TASKS)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(result.stdout)


_PGBENCH_SETUP = """
DROP TABLE IF EXISTS floor_tasks, floor_outbox;
CREATE TABLE floor_tasks (id int PRIMARY KEY, status text NOT NULL, attempt int NOT NULL,
                          lease uuid, expires timestamptz, worker text);
CREATE TABLE floor_outbox (id bigserial PRIMARY KEY, task int NOT NULL);
INSERT INTO floor_tasks SELECT n, 'Queued', 1 FROM generate_series(0, 999999) n;
CREATE SEQUENCE IF NOT EXISTS floor_next;
"""
_PGBENCH_SCRIPT = """
\\set id random(0, 999999)
UPDATE floor_tasks SET status = 'Running', lease = gen_random_uuid(),
       expires = now() + interval '120 s', worker = 'w'
 WHERE id = :id RETURNING lease AS lease \\gset
BEGIN;
UPDATE floor_tasks SET status = 'Completed'
 WHERE id = :id AND attempt = 1 AND lease = :lease::uuid AND status = 'Running';
INSERT INTO floor_outbox (task) VALUES (:id);
COMMIT;
"""


def pgbench(stack: BenchStack, clients: int) -> float:
    """Return the transaction rate of pgbench with two fenced updates and an outbox row per task."""
    stack.settle()
    with tempfile.NamedTemporaryFile("w", suffix=".sql", delete=False) as script:
        script.write(_PGBENCH_SCRIPT)
    try:
        port = str(stack.server.port)
        result = subprocess.run(
            [
                binaries.find().binary("pgbench"),
                *("-n", "-M", "prepared", "-c", str(clients), "-j", "1", "-T", "2"),
                *("-f", script.name, "-h", "127.0.0.1", "-p", port, "-U", "trace_state"),
                "trace_state",
            ],
            env={"PGPASSFILE": str(stack.server.passfile), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        Path(script.name).unlink()
    match = re.search(r"tps = ([\d.]+)", result.stdout)
    assert match, result.stdout
    return float(match[1])


def run() -> Iterator[Result]:
    """Measure claim and complete over HTTPS, with tokens and fencing."""
    with start_stack() as stack:
        deploy(stack)
        stack.execute(_PGBENCH_SETUP)
        ours_many(stack, 4)  # warm plans and caches
        for workers in WORKERS:
            yield compare(
                f"lifecycle_vs_pgqueuer[{workers}]",
                lambda n=workers: ours_many(stack, n),
                lambda n=workers: pgqueuer(stack, n),
                unit="tasks/s",
                goal=">= 1.0",
                rounds=ROUNDS,
            )
        for workers in WORKERS:
            yield compare(
                f"lifecycle_vs_pgbench[{workers}]",
                lambda n=workers: ours_single(stack, n),
                lambda n=workers: pgbench(stack, n),
                unit="tasks/s",
                goal=">= 0.5",
                rounds=ROUNDS,
            )
