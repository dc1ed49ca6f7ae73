"""Claims with millions of finished tasks behind them, against claims with none."""

import time
from uuid import uuid4

import uvloop

from bench import load
from bench.harness import Result, compare, percentile
from bench.stand import Stand

FINISHED = 5_000_000
CLAIMS = 1500
ROUNDS = 15  # of each, the worst hundredth: what the machine does beside it weighs more than we do

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


def claim_p99(made: Stand) -> float:
    """Milliseconds of the 99th percentile of single claims, one after the other."""
    rows = made.execute(_SEED, {"mark": uuid4().hex, "count": CLAIMS})
    ids = [str(row[0]) for row in rows]
    made.settle()

    async def run() -> list[float]:
        conn = await load.connect(made.internal_port, made.ca)
        waits: list[float] = []
        for task_id in ids:
            began = time.perf_counter()
            await load.claim(conn, made.worker_token, task_id, "growth")
            waits.append(1000 * (time.perf_counter() - began))
        conn.close()
        return waits

    waits = uvloop.run(run())
    made.execute("UPDATE tasks SET status = 'Completed' WHERE task_id = ANY(%s::uuid[])", (ids,))
    return percentile(waits, 0.99)


def measure(full: Stand, empty: Stand) -> list[Result]:
    """Fill one stand; then both take turns, so that the machine's moods strike them alike."""
    full.execute("TRUNCATE tasks, task_attempts, events, outbox CASCADE")
    for _ in range(10):
        full.execute(_FINISH, {"mark": uuid4().hex, "count": FINISHED // 10})
    for made in (full, empty):
        made.execute("VACUUM ANALYZE tasks")
        claim_p99(made)  # warm plans and caches
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
