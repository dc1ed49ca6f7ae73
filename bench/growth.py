"""Compare claims in a database with millions of finished tasks and in an empty one."""

import time
from uuid import uuid4

import uvloop

from bench import load
from bench.bench_stack import BenchStack
from bench.harness import Result, compare, percentile

FINISHED = 5_000_000
CLAIMS = 1500
ROUNDS = 15  # many, because other load on the machine dominates the 99th percentile of one round

_SEED = """
INSERT INTO tasks (org_id, job_id, revision_id, runtime, dedupe_key, max_attempts,
                   timeout_seconds, lease_seconds)
SELECT j.org_id, j.job_id, j.revision_id, 'ecs_python', %(mark)s || n, 3, 3600, 120
  FROM jobs j, generate_series(1, %(count)s) n WHERE j.name = 'work'
RETURNING task_id
"""
_FINISH = """
INSERT INTO tasks (org_id, job_id, revision_id, runtime, dedupe_key, max_attempts, status,
                   timeout_seconds, lease_seconds, started_at, finished_at)
SELECT j.org_id, j.job_id, j.revision_id, 'ecs_python', %(mark)s || n, 3, 'Completed', 3600, 120,
       now(), now()
  FROM jobs j, generate_series(1, %(count)s) n WHERE j.name = 'work'
"""


def claim_p99(stack: BenchStack) -> float:
    """Return the 99th percentile of sequential single claims, in milliseconds."""
    rows = stack.execute(_SEED, {"mark": uuid4().hex, "count": CLAIMS})
    ids = [str(row[0]) for row in rows]
    stack.settle()

    async def run() -> list[float]:
        conn = await load.connect(stack.internal_port, stack.ca)
        waits: list[float] = []
        for task_id in ids:
            began = time.perf_counter()
            await load.claim(conn, stack.worker_token, task_id, "growth")
            waits.append(1000 * (time.perf_counter() - began))
        conn.close()
        return waits

    waits = uvloop.run(run())
    stack.execute("UPDATE tasks SET status = 'Completed' WHERE task_id = ANY(%s::uuid[])", (ids,))
    return percentile(waits, 0.99)


def measure(full: BenchStack, empty: BenchStack) -> list[Result]:
    """Fill one stack, then measure both in turns, so that other load affects both alike."""
    full.execute("TRUNCATE tasks, task_attempts, events, outbox CASCADE")
    for _ in range(10):
        full.execute(_FINISH, {"mark": uuid4().hex, "count": FINISHED // 10})
    for stack in (full, empty):
        stack.execute("VACUUM ANALYZE tasks")
        claim_p99(stack)  # warm plans and caches
    return [
        compare(
            "lifecycle_claim_growth_p99",
            lambda: claim_p99(full),
            lambda: claim_p99(empty),
            unit="ms",
            goal="<= 1.2",
            rounds=ROUNDS,
        )
    ]
