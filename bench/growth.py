"""Compare claims in a database with a million finished tasks and in an empty one."""

import time
from uuid import uuid4

import uvloop

from bench import lifecycle, load
from bench.bench_stack import BenchStack, start_stack
from bench.harness import Result, compare, percentile

FINISHED = 1_000_000
CLAIMS = 1500
ROUNDS = 9  # many, because other load on the machine dominates the 99th percentile of one round

_FINISH = """
INSERT INTO tasks (org_id, job_id, revision_id, runtime, dedupe_key, max_attempts, status,
                   timeout_seconds, lease_seconds, started_at, finished_at)
SELECT j.org_id, j.job_id, j.revision_id, 'ecs_python', %(mark)s || n, 3, 'Completed', 3600, 120,
       now(), now()
  FROM jobs j, generate_series(1, %(count)s) n WHERE j.name = 'work'
"""


def claim_p99(stack: BenchStack) -> float:
    """Return the 99th percentile of sequential single claims, in milliseconds."""
    ids = lifecycle.seed(stack, CLAIMS)

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


def run() -> list[Result]:
    """Fill one stack, then measure both in turns, so that other load affects both alike."""
    with start_stack() as full, start_stack() as empty:
        for stack in (full, empty):
            lifecycle.deploy(stack)
        full.execute(_FINISH, {"mark": uuid4().hex, "count": FINISHED})
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
