"""DAGs for backpressure tests: each job reads the output of the previous one."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from support.lifecycle.lifecycle import Attempt, Bench

_HEAD = """
name: {name}
jobs:
  - name: request
    activation: source
    source: {{kind: manual}}
    outputs: [ranges]
  - name: split
    operator: range_splitter
    inputs: [{{from: {{job: request}}}}]
    outputs: [ranges]
    config: {{size: 10}}
"""
_JOB = """
  - name: {job}
    operator: sql
    inputs: [{inputs}]
    outputs: [out]
    config: {{sql: "SELECT 1"}}
"""


@dataclass(frozen=True)
class Graph:
    """A deployed DAG: `request`, `split`, and the jobs that the test defines."""

    bench: Bench
    name: str

    def trigger(self, count: int, first: int = 0) -> dict[str, Any]:
        """Trigger `count` partitions of ten blocks each."""
        span = {"start": first * 10, "end": (first + count) * 10 - 1}
        reply = self.bench.user.post(
            "/v1/triggers", json={"dag": self.name, "job": "request", **span}
        )
        assert reply.status_code == 200, reply.text
        return reply.json()

    def feed(self, count: int, first: int = 0) -> None:
        """Trigger partitions and route their events."""
        self.trigger(count, first)
        self.bench.live.drain()

    def queued(self, job: str) -> list[str]:
        query = """
            SELECT t.task_id::text
              FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
             WHERE g.name = %s AND j.name = %s AND t.status = 'Queued'
             ORDER BY t.range_start
        """
        return [row["task_id"] for row in self.bench.rows(query, self.name, job)]

    def finish_queued(self, job: str, count: int) -> None:
        """Claim and complete queued tasks, with an event for each output."""
        for task_id in self.queued(job)[:count]:
            self.finish(self.bench.claimed(task_id))

    def finish(self, attempt: Attempt) -> None:
        reply = self.bench.complete(attempt, events=[attempt.event()])
        assert reply.status_code == 200, reply.text

    def paused(self) -> dict[str, str]:
        """Return the paused jobs and the paused tier of each."""
        query = """
            SELECT j.name, p.tier
              FROM pauses p JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
             WHERE g.name = %s ORDER BY j.name, p.tier DESC
        """
        rows = self.bench.rows(query, self.name)
        return {row["name"]: row["tier"] for row in reversed(rows)}

    def make_bulk(self, job: str) -> None:
        query = "UPDATE tasks SET bulk = true WHERE task_id = ANY(%s::uuid[])"
        self.bench.rows(query, self.queued(job))


def graph(bench: Bench, jobs: dict[str, str], *, name: str | None = None) -> Graph:
    """Deploy jobs, each `job: "inputs; options"`, inputs being jobs or `@published` names."""
    name = name or f"p_{uuid4().hex[:10]}"
    text = _HEAD.format(name=name)
    for job, definition in jobs.items():
        inputs, _, options = definition.partition(";")
        text += _JOB.format(job=job, inputs=", ".join(_edge(source) for source in inputs.split()))
        text += "".join(f"    {line.strip()}\n" for line in options.split(";") if line.strip())
    text += "publish:\n" + "".join(
        f"  - {{name: {name}_{job}, from: {{job: {job}}}}}\n" for job in jobs
    )
    reply = bench.user.post("/v1/dags", json={"text": text})
    assert reply.status_code == 200, reply.text
    return Graph(bench, name)


def _edge(source: str) -> str:
    origin = f"{{dataset: {source[1:]}}}" if source.startswith("@") else f"{{job: {source}}}"
    return f"{{name: {source.lstrip('@')}, from: {origin}}}"


def balance(bench: Bench, *, escalate_after: float = 3600.0) -> None:
    """Run one pass of the backpressure loop."""
    loop = replace(
        bench.live.service.backpressure, escalate_after=timedelta(seconds=escalate_after)
    )
    bench.live.run(loop.balance_once)
