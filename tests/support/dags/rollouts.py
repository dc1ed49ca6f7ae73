"""DAGs whose definition changes, and workers that finish every task."""

from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx

from support.lifecycle.lifecycle import Attempt, Bench

_DAG = """
name: {name}
jobs:
  - name: request
    source: {{kind: manual}}
    outputs: [{ranges}]
  - name: split
    operator: range_splitter
    inputs: [{{from: {{job: request}}}}]
    outputs: [pieces]
    config: {{size: {size}}}
  - name: {work}
    operator: sql
    inputs: [{{from: {{job: split}}}}]
    outputs: [out]
    config: {{sql: "SELECT {column} FROM pieces"}}
    {options}
  - name: after
    operator: sql
    inputs: [{{from: {{job: {work}}}}}]
    outputs: [done]
    config: {{sql: "SELECT {last} FROM out"}}
{extra}
publish:
  - {{name: {name}_out, from: {{job: {work}}}}}
  - {{name: {name}_done, from: {{job: after}}}}
"""
_READER = """
name: {name}
jobs:
  - name: reader
    operator: sql
    inputs: [{{from: {{dataset: {dataset}}}}}]
    outputs: [copy]
    config: {{sql: "SELECT 1 FROM {dataset}"}}
"""


@dataclass
class RolloutDag:
    """A DAG of four jobs, which tests deploy, change and roll back: request, split, work, after."""

    bench: Bench
    name: str = field(default_factory=lambda: f"d_{uuid4().hex[:12]}")

    def text(self, **change: Any) -> str:
        values = {"size": 10, "column": 1, "last": 1, "work": "work", "ranges": "ranges"}
        defaults = {"options": "", "extra": ""}
        return _DAG.format(name=self.name, **{**values, **defaults, **change})

    def post(self, text: str, **fields: Any) -> httpx.Response:
        return self.bench.user.post("/v1/dags", json={"text": text, **fields})

    def deploy(self, **change: Any) -> dict[str, Any]:
        reply = self.post(self.text(**change))
        assert reply.status_code == 200, reply.text
        return reply.json()

    def deploy_reader(self) -> "RolloutDag":
        """Deploy another DAG that reads the output of `work`, and finish its three tasks."""
        other = RolloutDag(self.bench)
        text = _READER.format(name=other.name, dataset=f"{self.name}_out")
        assert other.post(text).status_code == 200
        assert other.finish_all("reader") == 3
        return other

    def plan(self, **change: Any) -> dict[str, Any]:
        reply = self.bench.user.post("/v1/plans", json={"text": self.text(**change)})
        assert reply.status_code == 200, reply.text
        return reply.json()

    def trigger(self, start: int, end: int) -> None:
        body = {"dag": self.name, "job": "request", "start": start, "end": end}
        reply = self.bench.user.post("/v1/triggers", json=body)
        assert reply.status_code == 200, reply.text
        self.bench.live.drain()

    def queued(self, job: str) -> list[str]:
        """Return the queued tasks of a job, ordered by partition."""
        return [
            str(row["task_id"])
            for row in self.bench.rows(
                """SELECT task_id FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
                    WHERE g.name = %s AND j.name = %s AND t.status = 'Queued'
                    ORDER BY t.range_start, t.created_at""",
                self.name,
                job,
            )
        ]

    def finish(self, task_id: str) -> Attempt:
        """Claim a task, write its output and complete it with its event."""
        attempt = self.bench.claimed(task_id)
        reply = self.bench.complete(
            attempt,
            datasets_published=[self.bench.write_output(attempt)],
            events=[attempt.event()],
        )
        assert reply.status_code == 200, reply.text
        return attempt

    def finish_all(self, *jobs: str) -> int:
        """Finish all tasks of these jobs, including tasks that result from them. Returns how many."""
        finished = 0
        self.bench.live.drain()
        while waiting := [task for job in jobs for task in self.queued(job)]:
            for task_id in waiting:
                self.finish(task_id)
            finished += len(waiting)
            self.bench.live.drain()
        return finished

    def deploy_and_build(self, start: int = 0, end: int = 29) -> dict[str, Any]:
        """Deploy, trigger blocks, and finish all tasks. Returns the deploy's answer."""
        deployed = self.deploy()
        self.trigger(start, end)
        self.finish_all("work", "after")
        return deployed

    def swap(self) -> bool:
        """Run one pass of the swapper. Returns whether this DAG's rollout is complete."""
        self.bench.live.run(self.bench.live.service.swapper.swap_once)
        return self.rollout()["state"] == "complete"

    def rollout(self) -> dict[str, Any]:
        reply = self.bench.user.get(f"/v1/dags/{self.name}/rollout")
        assert reply.status_code == 200, reply.text
        return reply.json()

    def roll_back(self) -> httpx.Response:
        return self.bench.user.post(f"/v1/dags/{self.name}/rollback")

    def current(self, published: str) -> dict[str, Any]:
        """Return a published dataset as readers see it."""
        reply = self.bench.user.get(f"/v1/datasets/{self.name}_{published}")
        assert reply.status_code == 200, reply.text
        return reply.json()

    def seen(self, published: str) -> tuple[str, list[str]]:
        """Return the generation and the partitions that readers see."""
        dataset = self.current(published)
        return dataset["dataset_version"], [p["partition_key"] for p in dataset["partition_list"]]

    def job(self, plan: dict[str, Any], name: str) -> dict[str, Any]:
        return next(job for job in plan["plan"]["jobs"] if job["name"] == name)
