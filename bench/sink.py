"""Compare rows through publish, sink and commit with the same rows by COPY and one upsert."""

import json
import os
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import psutil
import psycopg

from bench.bench_stack import BenchStack, start_stack
from bench.harness import Result, compare

_DAG = """
name: bench
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - name: alerts
    operator: sql
    inputs: [{from: {job: request}}]
    outputs: [out]
    update_strategy: append
    unique_key: [dedupe_key]
    timeout: 24h
    heartbeat_timeout: 24h
    config: {sql: "SELECT 1 AS n FROM ranges"}
publish:
  - name: alerts
    from: {job: alerts}
    write_mode: buffered
    schema:
      - {name: dedupe_key, type: string, nullable: false}
      - {name: block_number, type: long}
      - {name: score, type: double}
      - {name: severity, type: string}
      - {name: created_at, type: timestamp}
"""
_TABLE = """
CREATE TABLE reference (
    dedupe_key text PRIMARY KEY, block_number bigint, score double precision, severity text,
    created_at timestamptz, org_id text NOT NULL, _cursor bigint NOT NULL, _published bigint NOT NULL);
CREATE INDEX ON reference (_cursor);
"""
_STAGING = "CREATE TEMP TABLE incoming (LIKE reference) ON COMMIT DELETE ROWS"
_UPSERT = """
INSERT INTO reference SELECT * FROM incoming
ON CONFLICT (dedupe_key) DO UPDATE
   SET block_number = excluded.block_number, score = excluded.score, severity = excluded.severity,
       created_at = excluded.created_at, org_id = excluded.org_id, _cursor = excluded._cursor,
       _published = excluded._published
"""
_WRITTEN = "SELECT count(*) FROM buffer_publishes WHERE sunk_at IS NOT NULL"
_CREATED = "2025-12-27T12:00:00Z"
_ORG = "00000000-0000-0000-0000-000000000001"
_PUBLISHERS = 4
_SMALL_BATCHES = 60


@dataclass
class SinkBench:
    """A Dispatcher, a sink, and one attempt that publishes batches."""

    stack: BenchStack
    http: httpx.Client
    sink: psutil.Process
    attempt: dict[str, Any]
    reference: psycopg.Connection[Any]
    state: psycopg.Connection[Any]
    memory: list[int] = field(default_factory=list[int])

    def through_sink(self, batches: int, rows: int) -> float:
        """Publish batches and return the rows per second until the last one is committed."""
        uris = [self._write(_json_lines(rows)) for _ in range(batches)]
        done = self._written() + batches
        started = time.perf_counter()
        with ThreadPoolExecutor(_PUBLISHERS) as pool:
            list(pool.map(self._publish, uris))
        self._wait_for(done)
        speed = batches * rows / (time.perf_counter() - started)
        self.memory.append(self.sink.memory_info().rss)
        return speed

    def by_copy(self, batches: int, rows: int) -> float:
        """Copy and upsert the same number of rows, one transaction per batch."""
        prepared = [_copy_text(rows) for _ in range(batches)]
        started = time.perf_counter()
        for text in prepared:
            with self.reference.transaction():
                with self.reference.cursor().copy("COPY incoming FROM STDIN") as copy:
                    copy.write(text)
                self.reference.execute(_UPSERT)
        return batches * rows / (time.perf_counter() - started)

    def small_batch(self) -> float:
        """Publish one row and return the milliseconds until it is committed."""
        uri, done = self._write(_json_lines(1)), self._written() + 1
        started = time.perf_counter()
        self._publish(uri)
        self._wait_for(done)
        return (time.perf_counter() - started) * 1000

    def _write(self, content: bytes) -> str:
        ref = self.attempt["task"]["outputs"][0]["storage_ref"]
        name = f"{ref['bucket']}/{ref['prefix']}{uuid4().hex}.jsonl"
        path = self.stack.directory / "objects" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return f"s3://{name}"

    def _publish(self, uri: str) -> None:
        output = self.attempt["task"]["outputs"][0]
        body = {
            "task_id": self.attempt["task"]["task_id"],
            "attempt": self.attempt["attempt"],
            "lease_token": self.attempt["lease_token"],
            "dataset_uuid": output["dataset_uuid"],
            "batch_uri": uri,
        }
        headers = {"X-Trace-Task-Capability": self.attempt["capability_token"]}
        self.http.post("/v1/task/buffer-publish", json=body, headers=headers).raise_for_status()

    def _written(self) -> int:
        row = self.state.execute(_WRITTEN).fetchone()
        return row[0] if row else 0

    def _wait_for(self, count: int) -> None:
        while self._written() < count:
            time.sleep(0.002)


def _json_lines(rows: int) -> bytes:
    run = uuid4().hex[:12]
    lines = [
        json.dumps(
            {
                "dedupe_key": f"job:{run}:{n}",
                "block_number": n,
                "score": n / 7,
                "severity": "warning",
                "created_at": _CREATED,
            }
        )
        for n in range(rows)
    ]
    return "\n".join(lines).encode()


def _copy_text(rows: int) -> bytes:
    run = uuid4().hex[:12]
    lines: Sequence[str] = [
        f"job:{run}:{n}\t{n}\t{n / 7}\twarning\t{_CREATED}\t{_ORG}\t1\t1\n" for n in range(rows)
    ]
    return "".join(lines).encode()


@contextmanager
def _run_sink(stack: BenchStack) -> Generator[psutil.Process]:
    ready = stack.directory / "ready"
    environment = {
        "PATH": os.environ["PATH"],
        "TRACE_DISPATCHER_URL": f"https://127.0.0.1:{stack.internal_port}",
        "TRACE_TLS_CA": str(stack.ca),
        "TRACE_SERVICE_TOKEN_FILE": str(stack.directory / "sink" / "token"),
        "TRACE_QUEUE_DSN": stack.dsns.queue,
        "TRACE_DATA_DSN": stack.dsns.data,
        "TRACE_OBJECTS_URL": (stack.directory / "objects").as_uri(),
        "TRACE_READY_FILE": str(ready),
        "TRACE_LOG_LEVEL": "error",
    }
    process = subprocess.Popen([sys.executable, "-m", "trace_etl.sink"], env=environment)
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise RuntimeError(f"the sink exited with code {process.returncode}")
            time.sleep(0.05)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


def _claim(stack: BenchStack, http: httpx.Client) -> dict[str, Any]:
    stack.post("/v1/dags", {"text": _DAG})
    stack.post("/v1/triggers", {"dag": "bench", "job": "request", "start": 0, "end": 0})
    headers = {"X-Trace-Worker-Token": stack.worker_token.decode()}
    body = {"runtime": "ecs_python", "worker_id": "bench", "max_tasks": 1}
    while True:
        reply = http.post("/internal/task-claim-many", json=body, headers=headers)
        reply.raise_for_status()
        if claimed := reply.json()["claimed"]:
            return claimed[0]
        time.sleep(0.05)


@contextmanager
def _start_bench() -> Generator[SinkBench]:
    with start_stack() as stack, _run_sink(stack) as sink:
        context = ssl.create_default_context(cafile=str(stack.ca))
        url = f"https://127.0.0.1:{stack.internal_port}"
        with (
            httpx.Client(base_url=url, verify=context, trust_env=False, timeout=60) as http,
            psycopg.connect(stack.dsns.data, autocommit=True) as reference,
            psycopg.connect(stack.dsns.state, autocommit=True) as state,
        ):
            reference.execute(_TABLE)
            reference.execute(_STAGING)
            yield SinkBench(stack, http, sink, _claim(stack, http), reference, state)


def run() -> list[Result]:
    """Measure throughput, the latency of a small batch, and the memory of the sink."""
    with _start_bench() as bench:
        bench.through_sink(5, 1_000)
        bench.by_copy(5, 1_000)
        results = [
            compare(
                f"sink_vs_copy_upsert_{rows}",
                lambda batches=batches, rows=rows: bench.through_sink(batches, rows),
                lambda batches=batches, rows=rows: bench.by_copy(batches, rows),
                unit="rows/s",
                goal=">= 0.7",
                rounds=5,
            )
            for batches, rows in ((100, 1_000), (3, 100_000))
        ]
        latency = statistics.median(bench.small_batch() for _ in range(_SMALL_BATCHES))
        small = Result("sink_small_batch_p50", latency, 50.0, "ms", latency / 50.0, "<= 1.0")
        # The rounds with large batches fill the allocator's pools. Afterwards memory must not grow.
        before = max(bench.memory) / 1e6
        for _ in range(4):
            bench.through_sink(2, 100_000)
        after = bench.memory[-1] / 1e6
        flat = Result("sink_memory", after, before, "MB", after / before, "<= 1.1")
    return [*results, small, flat]
