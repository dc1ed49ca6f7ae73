"""Deploy a large DAG (200 jobs, 1,000 edges) over HTTPS, with durable commits."""

import statistics
import time

from bench.bench_stack import BenchStack, start_stack
from bench.harness import Result

JOBS = 200
EDGES = 1000
MAX_SECONDS = 2.0
ROUNDS = 3

_STEP = """  - name: j{n}
    operator: sql
    inputs: [{inputs}]
    outputs: [rows]
    config: {{sql: "SELECT {column} FROM i0"}}
"""


def text(name: str, column: str) -> str:
    """Return a DAG where every job reads several earlier jobs; `column` is in the second job's SQL."""
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


def _measure_post(stack: BenchStack, path: str, body: str) -> float:
    stack.settle()
    began = time.perf_counter()
    stack.post(path, {"text": body})
    return time.perf_counter() - began


def _make_result(name: str, seconds: list[float]) -> Result:
    median = statistics.median(seconds)
    return Result(name, median, MAX_SECONDS, "s", median / MAX_SECONDS, "<= 1.0")


def run() -> list[Result]:
    """Measure a new DAG, a change that affects every job, and its plan."""
    with start_stack() as stack:
        names = [f"large{n}" for n in range(ROUNDS)]
        first = [_measure_post(stack, "/v1/dags", text(name, "1")) for name in names]
        plans = [_measure_post(stack, "/v1/plans", text(name, "2")) for name in names]
        changed = [_measure_post(stack, "/v1/dags", text(name, "2")) for name in names]
        same = [_measure_post(stack, "/v1/dags", text(name, "2")) for name in names]
    return [
        _make_result("deploy_200_jobs_1000_edges", first),
        _make_result("deploy_change_of_every_job", changed),
        _make_result("deploy_same_text", same),
        _make_result("plan_200_jobs_1000_edges", plans),
    ]
