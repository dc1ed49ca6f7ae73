"""Measure the time from an accepted event to the claim of its task, at 100 events per second."""

import asyncio
import json
import statistics
import threading
import time
from datetime import timedelta
from typing import Any

import uvloop

from bench import load
from bench.bench_stack import BenchStack, start_stack
from bench.harness import Result, percentile
from trace_etl.queues.pgqueue import PgQueue

RATE = 100
SECONDS = 5
ROUNDS = 3
LIMITS = {"p50": (0.50, 10.0), "p99": (0.99, 40.0)}

_DAG = """
name: latency
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - name: produce
    operator: range_splitter
    runtime: ecs_platform
    inputs: [{from: {job: request}}]
    outputs: [produced]
    timeout: 1h
  - name: consume
    operator: range_splitter
    runtime: ecs_python
    inputs: [{from: {job: produce}}]
    outputs: [consumed]
"""


class WaitingWorker:
    """Waits for wake-up messages, claims their tasks, and records the time of each claim."""

    def __init__(self, stack: BenchStack) -> None:
        self.stack = stack
        self.claimed: dict[str, float] = {}
        self.stop = threading.Event()
        self.thread = threading.Thread(target=lambda: uvloop.run(self._run()))

    async def _run(self) -> None:
        consumer = PgQueue(self.stack.dsns.queue).consumer(["ecs_python"], "waiting")
        conn = await load.connect(self.stack.internal_port, self.stack.ca)
        while not self.stop.is_set():
            messages = consumer.receive(
                limit=10,
                visibility=timedelta(seconds=30),
                wait=timedelta(seconds=5),
                stop=self.stop,
            )
            for message in messages:
                task_id = message.body["task_id"]
                answer = await load.claim(conn, self.stack.worker_token, task_id, "waiting")
                if answer["status"] == "Claimed":
                    key = answer["task"]["scope"]["partition_key"]
                    self.claimed[key] = time.perf_counter()
                consumer.delete(message)
        consumer.close()
        conn.close()


async def _emit(stack: BenchStack, producer: Any, first: int) -> dict[str, float]:
    """Emit events at a steady rate, for keys from `first`; return when each was accepted."""
    conns = [await load.connect(stack.internal_port, stack.ca) for _ in range(8)]
    output = producer["task"]["outputs"][0]
    accepted: dict[str, float] = {}

    async def one(n: int) -> None:
        event = {
            "dataset_uuid": output["dataset_uuid"],
            "dataset_version": output["dataset_version"],
            "partition_key": f"{n}-{n}",
            "start": n,
            "end": n,
        }
        body = {
            "task_id": producer["task"]["task_id"],
            "attempt": producer["attempt"],
            "lease_token": producer["lease_token"],
            "events": [event],
        }
        header = b"x-trace-task-capability: " + producer["capability_token"].encode()
        await conns[n % len(conns)].post(b"/v1/task/events", header, json.dumps(body).encode())
        accepted[f"{n}-{n}"] = time.perf_counter()

    began = time.perf_counter()
    calls: list[asyncio.Task[None]] = []
    for n in range(RATE * SECONDS):
        await asyncio.sleep(max(0.0, began + n / RATE - time.perf_counter()))
        calls.append(asyncio.create_task(one(first + n)))
    await asyncio.gather(*calls)
    return accepted


async def _producer(stack: BenchStack) -> Any:
    """Claim a task that can emit events."""
    conn = await load.connect(stack.internal_port, stack.ca)
    while True:
        claimed = await load.claim_many(conn, stack.worker_token, "ecs_platform", "producer", 1)
        if claimed:
            return claimed[0]
        await asyncio.sleep(0.02)


def run() -> list[Result]:
    """Measure on a new stack, before autovacuum has work."""
    with start_stack() as stack:
        return _measure(stack)


def _measure(stack: BenchStack) -> list[Result]:
    """Compare latencies with their limits, on a stack whose Dispatcher runs its loops."""
    stack.post("/v1/dags", {"text": _DAG})
    stack.post("/v1/triggers", {"dag": "latency", "job": "request", "start": 0, "end": 0})
    producer = uvloop.run(_producer(stack))
    stack.execute("VACUUM ANALYZE tasks, events, outbox")
    stack.settle()
    worker = WaitingWorker(stack)
    worker.thread.start()
    try:
        rounds = [_waits(stack, producer, worker, n * RATE * SECONDS) for n in range(ROUNDS)]
    finally:
        worker.stop.set()
        worker.thread.join()
    return [
        Result(
            f"lifecycle_event_to_claim_{name}",
            latency,
            limit,
            "ms",
            latency / limit,
            "<= 1.0",
        )
        for name, (share, limit) in LIMITS.items()
        for latency in [statistics.median(percentile(waits, share) for waits in rounds)]
    ]


def _waits(stack: BenchStack, producer: Any, worker: WaitingWorker, first: int) -> list[float]:
    """Return the milliseconds from each event of a round to the claim of its task."""
    accepted = uvloop.run(_emit(stack, producer, first))
    deadline = time.monotonic() + 30
    while not accepted.keys() <= worker.claimed.keys():
        if time.monotonic() > deadline:
            lost = len(accepted.keys() - worker.claimed.keys())
            raise RuntimeError(f"{lost} events were never claimed")
        time.sleep(0.05)
    return [1000 * max(0.0, worker.claimed[key] - at) for key, at in accepted.items()]
