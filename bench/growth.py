"""Claims with millions of finished tasks behind them, against claims on an empty table."""

import statistics
import time
from collections.abc import Callable
from uuid import uuid4

import uvloop

from bench import load
from bench.harness import Result, percentile
from bench.stand import Stand

FINISHED = 5_000_000
CLAIMS = 1500
ROUNDS = 3

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


def _median(measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(ROUNDS))


def measure(made: Stand) -> list[Result]:
    """The empty table first: the two states cannot take turns."""
    made.execute("TRUNCATE tasks, task_attempts, events, outbox CASCADE")
    made.execute("VACUUM ANALYZE tasks")
    empty = _median(lambda: claim_p99(made))
    for _ in range(10):
        made.execute(_FINISH, {"mark": uuid4().hex, "count": FINISHED // 10})
    made.execute("VACUUM ANALYZE tasks")
    full = _median(lambda: claim_p99(made))
    return [Result("lifecycle_claim_growth_p99", full, empty, "ms", full / empty, "<= 1.2")]
