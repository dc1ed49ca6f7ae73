"""A DAG with a manual source, a cron source, a job per tick and a job over a whole dataset."""

from typing import Any
from uuid import uuid4

from support.lifecycle.lifecycle import Attempt, Bench

_DAG = """
name: {name}
jobs:
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
  - {{name: tick, source: {{kind: cron, schedule: "* * * * *"}}, outputs: [ticks]}}
  - name: rows
    operator: sql
    inputs: [{{from: {{job: request}}}}]
    outputs: [rows]
    config: {{sql: "SELECT 1 AS n"}}
  - name: summary
    operator: sql
    inputs:
      - from: {{job: tick}}
      - from: {{job: rows}}
    outputs: [summary]
    config: {{sql: "SELECT count(*) AS n, :scheduled_time AS at FROM rows /* {text} */"}}
  - name: whole
    operator: sql
    inputs: [{{from: {{job: rows}}}}]
    outputs: [whole]
    execution_strategy: WholeDataset
    config: {{sql: "SELECT count(*) AS n FROM rows"}}
"""


class Clock:
    """A DAG with a manual source, a cron source, a job per tick and a job over a whole dataset."""

    def __init__(self, bench: Bench, text: str = _DAG) -> None:
        self.bench = bench
        self.name = f"t_{uuid4().hex[:12]}"
        self.text = text
        self.deploy()

    def deploy(self, text: str = "") -> dict[str, Any]:
        yaml = self.text.format(name=self.name, text=text)
        reply = self.bench.user.post("/v1/dags", json={"text": yaml})
        assert reply.status_code == 200, reply.text
        self.bench.live.drain()
        return reply.json()

    def trigger(self, job: str, status: int = 200, **scope: Any) -> dict[str, Any]:
        body = {"dag": self.name, "job": job, **scope}
        reply = self.bench.user.post("/v1/triggers", json=body)
        assert reply.status_code == status, reply.text
        self.bench.live.drain()
        return reply.json()

    def tick(self, minute: int) -> dict[str, Any]:
        return self.trigger("tick", scheduled_time=f"2026-03-01T12:{minute:02}:00Z")

    def tasks(self, job: str, **filters: Any) -> list[dict[str, Any]]:
        query = {"dag": self.name, "job": job, "limit": 1000, **filters}
        return self.bench.user.get("/v1/tasks", params=query).json()["items"]

    def claim(self, job: str) -> Attempt:
        """Claim the only queued task of a job."""
        (task,) = self.tasks(job, status="Queued")
        return self.bench.claimed(task["task_id"])

    def complete(self, attempt: Attempt, content: int | None = None) -> None:
        output = self.bench.write_output(attempt, content=content)
        if output["range_start"] is None:
            output |= {"partition_key": attempt.scope["partition_key"]}
        reply = self.bench.complete(attempt, datasets_published=[output])
        assert reply.status_code == 200, reply.text
        self.bench.live.drain()

    def run(self, job: str) -> Attempt:
        """Claim and complete the only queued task of a job."""
        attempt = self.claim(job)
        self.complete(attempt)
        return attempt

    def add_rows(self, first: int) -> None:
        """Commit the partition of ten blocks."""
        self.trigger("request", start=first, end=first + 9)
        self.run("rows")

    def progress(self, answer: dict[str, Any]) -> dict[str, Any]:
        body = {
            "dag": self.name,
            "event_ids": answer["event_ids"],
            "task_ids": answer["retried_task_ids"],
        }
        return self.bench.user.post("/v1/progress", json=body).json()
