"""Deploying a large DAG: 200 jobs and 1,000 edges, over HTTPS, with durable commits."""

import statistics
import time

from bench.harness import Result
from bench.stand import Stand, stand

JOBS = 200
EDGES = 1000
MOST_SECONDS = 2.0
ROUNDS = 3

_STEP = """  - name: j{n}
    operator: sql
    inputs: [{inputs}]
    outputs: [rows]
    config: {{sql: "SELECT {column} FROM i0"}}
"""


def text(name: str, column: str) -> str:
    """A DAG where every job reads several of those before it; `column` shapes its second job."""
    parts = [f"name: {name}\njobs:\n  - {{name: j0, source: {{kind: manual}}, outputs: [rows]}}\n"]
    left = EDGES
    for n in range(1, JOBS):
        share = min(n, -(-left // (JOBS - n)) if n > 6 else n)
        left -= share
        inputs = ", ".join(
            f"{{from: {{job: j{n - 1 - i * max(1, (n - 1) // 7) if i else n - 1}}}, name: i{i}}}"
            for i in range(share)
        )
        parts.append(_STEP.format(n=n, inputs=inputs, column=column if n == 1 else "1"))
    assert left == 0, left
    return "".join(parts)


def _seconds(made: Stand, path: str, body: str) -> float:
    made.settle()
    began = time.perf_counter()
    made.post(path, {"text": body})
    return time.perf_counter() - began


def _bound(name: str, seconds: list[float]) -> Result:
    median = statistics.median(seconds)
    return Result(name, median, MOST_SECONDS, "s", median / MOST_SECONDS, "<= 1.0")


def run() -> list[Result]:
    """A new DAG, a change that reaches every job, and the plan of it."""
    with stand() as made:
        names = [f"large{n}" for n in range(ROUNDS)]
        first = [_seconds(made, "/v1/dags", text(name, "1")) for name in names]
        plans = [_seconds(made, "/v1/plans", text(name, "2")) for name in names]
        changed = [_seconds(made, "/v1/dags", text(name, "2")) for name in names]
        same = [_seconds(made, "/v1/dags", text(name, "2")) for name in names]
    return [
        _bound("deploy_200_jobs_1000_edges", first),
        _bound("deploy_change_of_every_job", changed),
        _bound("deploy_same_text", same),
        _bound("plan_200_jobs_1000_edges", plans),
    ]
