"""Tasks for lifecycle tests: a DAG per test, claims, fences, and database rows to compare."""

import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Barrier, Thread
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from support import queue_tables
from support.services.dispatcher import Live

WORK_TABLES = (
    "tasks",
    "task_attempts",
    "events",
    "partitions",
    "outbox",
    "buffer_publishes",
    "jobs",
    "dags",
    "datasets",
    "publications",
)
_DAG = """
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
  - name: work
    operator: sql
    inputs: [{{from: {{job: split}}}}]
    outputs: [out]
    config: {{sql: "SELECT {column} FROM ranges"}}
    {options}
  - name: after
    operator: sql
    inputs: [{{from: {{job: work}}}}]
    outputs: [done]
    config: {{sql: "SELECT 1 FROM out"}}
publish:
  - {{name: {name}_out, from: {{job: work}}}}
"""


@dataclass(frozen=True)
class Attempt:
    """A claimed attempt as its worker received it."""

    claimed: dict[str, Any]

    @property
    def task_id(self) -> str:
        return self.claimed["task"]["task_id"]

    @property
    def number(self) -> int:
        return self.claimed["attempt"]

    @property
    def token(self) -> str:
        return self.claimed["capability_token"]

    @property
    def fence(self) -> dict[str, Any]:
        return {
            "task_id": self.task_id,
            "attempt": self.number,
            "lease_token": self.claimed["lease_token"],
        }

    @property
    def output(self) -> dict[str, Any]:
        return self.claimed["task"]["outputs"][0]

    @property
    def scope(self) -> dict[str, Any]:
        return self.claimed["task"]["scope"]

    def event(self, **fields: Any) -> dict[str, Any]:
        """Build an event for this attempt's output. Default scope: the attempt's own partition."""
        scope = {k: self.scope[k] for k in ("partition_key", "start", "end")}
        version = {"dataset_version": self.output["dataset_version"]}
        return {"dataset_uuid": self.output["dataset_uuid"], **version, **(fields or scope)}


@dataclass(frozen=True)
class Dag:
    """A deployed DAG, and the options it was deployed with."""

    name: str
    options: str
    datasets: dict[str, dict[str, Any]]

    @property
    def published(self) -> str:
        return f"{self.name}_out"


class Bench:
    """A Dispatcher with a client for each of its two listeners."""

    def __init__(self, live: Live, http: httpx.Client, user: httpx.Client) -> None:
        self.live = live
        self.http = http
        self.user = user

    # --- creating tasks ----------------------------------------------------------------------

    def dag(self, options: str = "", *, name: str | None = None, column: str = "1") -> Dag:
        """Deploy a new DAG; `options` are YAML lines of its job `work`."""
        name = name or f"t_{uuid4().hex[:12]}"
        text = _DAG.format(name=name, column=column, options=options.replace("\n", "\n    "))
        reply = self.user.post("/v1/dags", json={"text": text})
        assert reply.status_code == 200, reply.text
        datasets = {d["job"]: d for d in reply.json()["datasets"]}
        return Dag(name, options, datasets)

    def tasks(self, count: int = 1, options: str = "", dag: Dag | None = None) -> list[str]:
        """Create queued tasks of the job `work` through a trigger, a split and the outbox."""
        dag = dag or self.dag(options)
        body = {"dag": dag.name, "job": "request", "start": 0, "end": count * 10 - 1}
        reply = self.user.post("/v1/triggers", json=body)
        assert reply.status_code == 200, reply.text
        self.live.drain()
        created = self.waiting(dag, "work")
        assert len(created) == count, created
        return created

    def waiting(self, dag: Dag, job: str) -> list[str]:
        """Return the queued tasks of a job, ordered by partition."""
        query = {"dag": dag.name, "job": job, "status": "Queued", "limit": 1000}
        items = self.user.get("/v1/tasks", params=query).json()["items"]
        items.sort(key=lambda item: int(item["partition_key"].partition("-")[0]))
        return [item["task_id"] for item in items]

    def attempt(self, options: str = "", dag: Dag | None = None) -> Attempt:
        """Create a task and claim its first attempt."""
        (task_id,) = self.tasks(1, options, dag)
        return self.claimed(task_id)

    def claimed(self, task_id: str, worker: str = "w1") -> Attempt:
        reply = self.claim(task_id, worker)
        assert reply.json()["status"] == "Claimed", reply.text
        return Attempt(reply.json())

    # --- calls ------------------------------------------------------------------------------

    @property
    def worker_headers(self) -> dict[str, str]:
        return {"X-Trace-Worker-Token": self.live.secrets.worker_token}

    @property
    def sink_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.live.secrets.service_token('sink')}"}

    def claim(self, task_id: str, worker: str = "w1", http: httpx.Client | None = None):
        body = {"task_id": task_id, "worker_id": worker}
        return (http or self.http).post(
            "/internal/task-claim", json=body, headers=self.worker_headers
        )

    def claim_many(self, runtime: str, max_tasks: int) -> list[dict[str, Any]]:
        """Claim several tasks in one call. Returns the claimed tasks."""
        body = {"runtime": runtime, "worker_id": "w1", "max_tasks": max_tasks}
        reply = self.http.post("/internal/task-claim-many", json=body, headers=self.worker_headers)
        assert reply.status_code == 200, reply.text
        return reply.json()["claimed"]

    def fetch(self, task_id: str) -> httpx.Response:
        query = {"task_id": task_id}
        return self.http.get("/internal/task-fetch", params=query, headers=self.worker_headers)

    def call(
        self,
        path: str,
        attempt: Attempt,
        /,
        *,
        token: str | None = None,
        http: httpx.Client | None = None,
        **fields: Any,
    ) -> httpx.Response:
        """Send a task-scoped call. Defaults: the attempt's fence and token."""
        headers = {"X-Trace-Task-Capability": attempt.token if token is None else token}
        body = {**attempt.fence, **fields}
        return (http or self.http).post(path, json=body, headers=headers)

    def heartbeat(self, attempt: Attempt, /, **fields: Any) -> httpx.Response:
        return self.call("/v1/task/heartbeat", attempt, **fields)

    def events(self, attempt: Attempt, /, *events: dict[str, Any], **fields: Any) -> httpx.Response:
        return self.call("/v1/task/events", attempt, events=list(events), **fields)

    def complete(
        self, attempt: Attempt, status: str = "Completed", /, **fields: Any
    ) -> httpx.Response:
        return self.call("/v1/task/complete", attempt, status=status, **fields)

    def publish(self, attempt: Attempt, /, **fields: Any) -> httpx.Response:
        return self.call("/v1/task/buffer-publish", attempt, **fields)

    def cancel(self, task_id: str) -> httpx.Response:
        return self.user.post(f"/v1/tasks/{task_id}/cancel")

    # --- objects ----------------------------------------------------------------------------

    def write_output(
        self, attempt: Attempt, rows: int = 3, *, content: int | None = None
    ) -> dict[str, Any]:
        """Write the attempt's output and its marker. Returns the publication to send.

        `content` is the hash of the rows, and their sum, that the marker has.
        """
        ref = attempt.output["storage_ref"]
        start, end = attempt.scope["start"], attempt.scope["end"]
        write_parquet_output(self.prefix(attempt), f"out_{start}_{end}.parquet", rows)
        if content is not None:
            path = self.prefix(attempt) / "_SUCCESS"
            hashes = {"content_hash": rows_hash(content), "row_sum": f"{content:064x}"}
            schema = [{"name": "n", "type": "bigint"}]
            marker = {**json.loads(path.read_text()), "schema": schema, **hashes}
            path.write_text(json.dumps(marker))
        return {
            "dataset_uuid": attempt.output["dataset_uuid"],
            "dataset_version": attempt.output["dataset_version"],
            "storage_ref": ref,
            "range_start": start,
            "range_end": end,
        }

    def add_verification(self, attempt: Attempt, fork: str, *, provisional: bool) -> None:
        """Add to the marker of an attempt that its blocks were verified. `fork` starts their hashes."""
        start, end = attempt.scope["start"], attempt.scope["end"]
        verified = {
            **{
                "start": start,
                "end": end,
                "level": "roots",
                "checks": ["links"],
                "rules_version": 1,
            },
            "endpoints": [f"node-{fork}:8545"],
            "first_parent_hash": f"0x{fork}{start - 1:062x}" if start else "0x" + "00" * 32,
            "first_hash": f"0x{fork}{start:062x}",
            "last_hash": f"0x{fork}{end:062x}",
            "provisional": provisional,
        }
        path = self.prefix(attempt) / "_SUCCESS"
        path.write_text(json.dumps({**json.loads(path.read_text()), "verified": verified}))

    def prefix(self, attempt: Attempt) -> Path:
        """Return the directory that only this attempt writes."""
        ref = attempt.output["storage_ref"]
        return self.live.objects / ref["bucket"] / ref["prefix"]

    # --- the database -----------------------------------------------------------------------

    def rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        """Run one statement on Postgres state."""
        return self.live.state.run(query, values)

    def row(self, task_id: str) -> dict[str, Any]:
        """Return the database row of a task."""
        (row,) = self.rows("SELECT * FROM tasks WHERE task_id = %s", task_id)
        return row

    def status(self, task_id: str) -> str:
        return self.row(task_id)["status"]

    def dump(self) -> dict[str, list[str]]:
        """Return all rows that calls can change, as text, to compare before and after."""
        with psycopg.connect(self.live.dsns.state) as conn:
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursors = {
                t: conn.execute(f"SELECT t::text FROM {t} t ORDER BY 1") for t in WORK_TABLES
            }
            return {table: [text for (text,) in cursor] for table, cursor in cursors.items()}

    def messages(self, queue: str) -> list[dict[str, Any]]:
        """Return the bodies of the messages in a queue."""
        return queue_tables.bodies(self.live.dsns.queue, queue)

    # --- time -------------------------------------------------------------------------------

    def let_lease_expire(self, attempt: Attempt) -> None:
        late = "lease_expires_at = now() - interval '1 second'"
        self.rows(f"UPDATE tasks SET {late} WHERE task_id = %s", attempt.task_id)

    def reap(self) -> int:
        return self.live.run(self.live.service.reaper.reap_once)

    def let_retry_fall_due(self, task_id: str) -> None:
        self.rows(
            "UPDATE tasks SET retry_at = now() WHERE task_id = %s AND retry_at IS NOT NULL", task_id
        )

    def start_retries(self) -> int:
        return self.live.run(self.live.service.retries.retry_once)

    def reaped(self, options: str = "") -> Attempt:
        """Create an attempt, let its lease expire, and reap it."""
        attempt = self.attempt(options)
        self.let_lease_expire(attempt)
        self.reap()
        return attempt

    def next_attempt(self, attempt: Attempt) -> Attempt:
        """Start the retry of a failed attempt and claim it."""
        self.let_retry_fall_due(attempt.task_id)
        self.start_retries()
        return self.claimed(attempt.task_id, "w2")


@cache
def parquet_file(rows: int) -> bytes:
    """Return a Parquet file with one column and this many rows."""
    target = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": range(rows)}), target)
    return target.getvalue().to_pybytes()


def rows_hash(content: int) -> str:
    """Return a content hash as text."""
    return f"rows.v1:{content:064x}"


def write_parquet_output(directory: Path, name: str, rows: int) -> None:
    """Write a Parquet file and the success marker of its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    content = parquet_file(rows)
    (directory / name).write_bytes(content)
    file = {"name": name, "rows": rows, "bytes": len(content)}
    marker = {"files": [file], "rows": rows, "bytes": len(content), "schema": []}
    (directory / "_SUCCESS").write_text(json.dumps(marker))


@contextmanager
def bench(live: Live) -> Generator[Bench]:
    """Open clients of a Dispatcher, and close them before it stops."""
    with live.internal() as http, live.user() as user:
        yield Bench(live, http, user)


def run_concurrently(calls: list[Callable[[], Any]]) -> list[Any]:
    """Run every call in its own thread; a barrier starts all of them together."""
    barrier = Barrier(len(calls))
    answers: list[Any] = [None] * len(calls)

    def run(n: int) -> None:
        barrier.wait(120)
        try:
            answers[n] = calls[n]()
        except BaseException as error:
            answers[n] = error

    threads = [Thread(target=run, args=(n,)) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    if failures:
        raise failures[0]
    return answers


def run_behind_lock(
    dsn: str,
    lock: str,
    calls: list[Callable[[], Any]],
    *,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[Any]:
    """Run the calls concurrently behind a lock, released once every call either waits or has answered."""
    with psycopg.connect(dsn) as conn, psycopg.connect(dsn, autocommit=True) as watch:
        conn.execute(lock)
        answered: list[int] = []

        def counted(call: Callable[[], Any]) -> Callable[[], Any]:
            def run() -> Any:
                answer = call()
                answered.append(1)
                return answer

            return run

        def release_lock() -> None:
            deadline = time.monotonic() + 30
            while _count_lock_waits(watch) + len(answered) < len(calls):
                assert time.monotonic() < deadline, "no call waits for the lock"
                time.sleep(0.002)
            meanwhile()
            conn.commit()

        return run_concurrently([*map(counted, calls), release_lock])[:-1]


def _count_lock_waits(conn: psycopg.Connection) -> int:
    query = """
        SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock'
    """
    (row,) = conn.execute(query).fetchall()
    return row[0]
