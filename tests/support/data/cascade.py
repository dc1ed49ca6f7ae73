"""A chain that changes, jobs derived from it, and workers that answer late, twice or never."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from support.lifecycle.lifecycle import Attempt, Bench

SIZE = 10
_DAG = """
name: {name}
jobs:
  - name: request
    activation: source
    source: {{kind: manual}}
    outputs: [requested]
  - name: split
    operator: range_splitter
    inputs: [{{from: {{job: request}}}}]
    outputs: [ranges]
    config: {{size: 10}}
  - {{name: base, operator: sql, inputs: [{{from: {{job: split}}}}], outputs: [base],
     config: {{sql: "SELECT 1"}}, max_attempts: 50}}
  - {{name: left, operator: sql, inputs: [{{from: {{job: base}}}}], outputs: [left],
     config: {{sql: "SELECT 1"}}, max_attempts: 50}}
  - {{name: right, operator: sql, inputs: [{{from: {{job: base}}}}], outputs: [right],
     config: {{sql: "SELECT 2"}}, max_attempts: 50}}
  - {{name: both, operator: sql, inputs: [{{from: {{job: left}}}}, {{from: {{job: right}}}}],
     outputs: [both], config: {{sql: "SELECT 3"}}, max_attempts: 50}}
publish:
  - {{name: {name}_ranges, from: {{job: split}}}}
  - {{name: {name}_base, from: {{job: base}}}}
  - {{name: {name}_left, from: {{job: left}}}}
  - {{name: {name}_both, from: {{job: both}}}}
"""
JOBS = ("base", "left", "right", "both")
Rows = dict[str, Any]


def transform(job: str, inputs: list[Rows]) -> Rows:
    """Compute a job's output rows. The result depends only on the input rows."""
    if job == "both":
        shared = inputs[0].keys() & inputs[1].keys()
        return {block: [inputs[0][block], inputs[1][block]] for block in shared}
    return {block: f"{job}({value})" for block, value in inputs[0].items()}


@dataclass
class CascadeDag:
    """One DAG, its chain, and the attempts that are running."""

    bench: Bench
    chain: dict[int, int] = field(default_factory=dict)
    running: list[tuple[Attempt, Rows]] = field(default_factory=list)
    finished: list[tuple[Attempt, dict[str, Any]]] = field(default_factory=list)
    name: str = field(default_factory=lambda: f"w_{uuid4().hex[:12]}")
    conn: psycopg.Connection | None = None

    def deploy(self) -> "CascadeDag":
        reply = self.bench.user.post("/v1/dags", json={"text": _DAG.format(name=self.name)})
        assert reply.status_code == 200, reply.text
        return self

    # --- actions ---------------------------------------------------------------------------

    def trigger(self, first: int, last: int) -> None:
        body = {"dag": self.name, "job": "request", "start": first, "end": last}
        assert self.bench.user.post("/v1/triggers", json=body).status_code == 200
        for block in range(first, last + 1):
            self.chain.setdefault(block, 0)

    def reorganise(self, first: int, last: int) -> None:
        """Change blocks of the chain, and invalidate them."""
        for block in range(first, last + 1):
            if block in self.chain:
                self.chain[block] += 1
        self.invalidate("ranges", start=first, end=last)

    def invalidate(self, output: str, **scope: Any) -> int:
        path = f"/v1/datasets/{self.name}_{output}/invalidations"
        reply = self.bench.user.post(path, json=scope)
        assert reply.status_code in (200, 404), reply.text
        return reply.status_code

    def claim(self, nth: int) -> None:
        waiting = self.waiting()
        if not waiting:
            return
        reply = self.bench.claim(waiting[nth % len(waiting)], "w")
        if reply.json()["status"] == "Claimed":
            attempt = Attempt(reply.json())
            self.running.append((attempt, self._compute(attempt)))

    def finish(self, nth: int) -> None:
        if not self.running:
            return
        attempt, rows = self.running.pop(nth % len(self.running))
        published = self._write(attempt, rows)
        body = {"datasets_published": [published], "events": [attempt.event()]}
        reply = self.bench.complete(attempt, **body)
        assert reply.status_code in (200, 409), reply.text
        self.finished.append((attempt, body))

    def finish_all(self) -> None:
        """Claim and finish every queued task in order, then route the resulting events."""
        while self.waiting():
            self.claim(0)
        while self.running:
            self.finish(0)
        self.publish()

    def repeat(self, nth: int) -> None:
        """Repeat a completion whose answer was lost."""
        if self.finished:
            attempt, body = self.finished[nth % len(self.finished)]
            reply = self.bench.complete(attempt, **body)
            assert reply.status_code in (200, 409), reply.text

    def kill(self, nth: int) -> None:
        """End a worker silently: its lease expires and the next attempt starts."""
        if not self.running:
            return
        attempt, _ = self.running.pop(nth % len(self.running))
        self.bench.let_lease_expire(attempt)
        self.bench.reap()
        self.bench.let_retry_fall_due(attempt.task_id)
        self.bench.start_retries()

    def expire_lease(self, nth: int) -> None:
        """Expire a lease, but keep the worker: it may still complete until the next attempt starts."""
        if self.running:
            attempt, _ = self.running[nth % len(self.running)]
            self.bench.let_lease_expire(attempt)
            self.bench.reap()

    def lose_routing(self) -> None:
        """Delete the outbox rows that would route events and invalidations."""
        self.bench.rows("DELETE FROM outbox WHERE kind IN ('route_event', 'route_invalidation')")

    def publish(self) -> None:
        self.bench.live.drain()

    def reconcile(self) -> None:
        while self.bench.live.run(self.bench.live.service.reconciler.reconcile_once):
            pass

    def settle(self) -> None:
        """Finish all work without further losses; the attempts that read first finish last."""
        while True:
            self.publish()
            self.reconcile()
            self.publish()
            self._retry_everything()
            if not (self.waiting() or self.running):
                return
            while self.waiting():
                self.claim(0)
            while self.running:
                self.finish(len(self.running) - 1)

    def close(self) -> None:
        if self.conn is not None:
            self.conn.close()

    # --- state --------------------------------------------------------------------------

    def waiting(self) -> list[str]:
        query = """
            SELECT t.task_id FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
             WHERE g.name = %s AND t.status = 'Queued' AND t.runtime <> 'dispatcher'
             ORDER BY j.name, t.range_start, t.created_at, t.task_id
        """
        if self.conn is None:
            self.conn = psycopg.connect(self.bench.live.dsns.state, autocommit=True)
        return [str(row[0]) for row in self.conn.execute(query, (self.name,))]

    def visible_rows(self, job: str) -> Rows:
        """Return every row that a reader of the job's output sees now."""
        query = """
            SELECT p.storage_ref FROM partitions p JOIN datasets d USING (dataset_version)
              JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
             WHERE g.name = %s AND j.name = %s
        """
        visible: Rows = {}
        for row in self.bench.rows(query, self.name, job):
            rows = self._read(row["storage_ref"])
            assert not visible.keys() & rows.keys(), "two visible partitions contain the same row"
            visible |= rows
        return visible

    def expected_rows(self, job: str) -> Rows:
        """Return the rows that a build from scratch would produce."""
        if job == "base":
            return {str(block): value for block, value in self.chain.items()}
        upstream = {"left": ["base"], "right": ["base"], "both": ["left", "right"]}[job]
        return transform(job, [self.expected_rows(name) for name in upstream])

    def _compute(self, attempt: Attempt) -> Rows:
        task = attempt.claimed["task"]
        scope = range(task["scope"]["start"], task["scope"]["end"] + 1)
        if task["job"]["name"] == "base":
            return {str(b): self.chain[b] for b in scope if b in self.chain}
        inputs: list[Rows] = []
        for task_input in task["inputs"]:
            rows: Rows = {}
            for part in task_input["partitions"]:
                rows |= self._read(part["storage_ref"])
            inputs.append({block: v for block, v in rows.items() if int(block) in scope})
        return transform(task["job"]["name"], inputs)

    def _write(self, attempt: Attempt, rows: Rows) -> dict[str, Any]:
        published = self.bench.write_output(attempt, len(rows))
        (self._directory(published["storage_ref"]) / "rows.json").write_text(json.dumps(rows))
        return published

    def _read(self, ref: dict[str, Any]) -> Rows:
        return json.loads((self._directory(ref) / "rows.json").read_text())

    def _directory(self, ref: dict[str, Any]) -> Path:
        return self.bench.live.objects / ref["bucket"] / ref["prefix"]

    def _retry_everything(self) -> None:
        self.bench.rows("UPDATE tasks SET retry_at = now() WHERE retry_at IS NOT NULL")
        self.bench.start_retries()
