"""Event accepted → dependent task claimed by a waiting worker, at 100 events a second."""

import asyncio
import json
import statistics
import threading
import time
from datetime import timedelta
from typing import Any

import uvloop

from bench import load
from bench.harness import Result, percentile
from bench.stand import Stand
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
    """Listens on the queue and claims what it is woken for, noting when."""

    def __init__(self, made: Stand) -> None:
        self.made = made
        self.claimed: dict[str, float] = {}
        self.stop = threading.Event()
        self.thread = threading.Thread(target=lambda: uvloop.run(self._run()))

    async def _run(self) -> None:
        consumer = PgQueue(self.made.dsns.queue).consumer(["ecs_python"], "waiting")
        conn = await load.connect(self.made.internal_port, self.made.ca)
        while not self.stop.is_set():
            messages = consumer.receive(
                limit=10,
                visibility=timedelta(seconds=30),
                wait=timedelta(seconds=5),
                stop=self.stop,
            )
            for message in messages:
                task_id = message.body["task_id"]
                answer = await load.claim(conn, self.made.worker_token, task_id, "waiting")
                if answer["status"] == "Claimed":
                    key = answer["task"]["scope"]["partition_key"]
                    self.claimed[key] = time.perf_counter()
                consumer.delete(message)
        consumer.close()
        conn.close()


async def _emit(made: Stand, producer: Any, first: int) -> dict[str, float]:
    """Events at a steady rate, about keys from `first` on; when each was accepted."""
    conns = [await load.connect(made.internal_port, made.ca) for _ in range(8)]
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


async def _producer(made: Stand) -> Any:
    """A running task that may emit: triggered, routed, and claimed by us."""
    conn = await load.connect(made.internal_port, made.ca)
    while True:
        won = await load.claim_many(conn, made.worker_token, "ecs_platform", "producer", 1)
        if won:
            return won[0]
        await asyncio.sleep(0.02)


def measure(made: Stand) -> list[Result]:
    """Latencies against the limits, on a stand whose Dispatcher runs its loops."""
    made.post("/v1/dags", {"text": _DAG})
    made.post("/v1/triggers", {"dag": "latency", "job": "request", "start": 0, "end": 0})
    producer = uvloop.run(_producer(made))
    made.execute("VACUUM ANALYZE tasks, events, outbox")
    made.settle()
    worker = WaitingWorker(made)
    worker.thread.start()
    try:
        rounds = [_waits(made, producer, worker, n * RATE * SECONDS) for n in range(ROUNDS)]
    finally:
        worker.stop.set()
        worker.thread.join()
    return [
        Result(f"lifecycle_event_to_claim_{name}", got, limit, "ms", got / limit, "<= 1.0")
        for name, (share, limit) in LIMITS.items()
        for got in [statistics.median(percentile(waits, share) for waits in rounds)]
    ]


def _waits(made: Stand, producer: Any, worker: WaitingWorker, first: int) -> list[float]:
    """How many milliseconds each event of a round took until its task was claimed."""
    accepted = uvloop.run(_emit(made, producer, first))
    deadline = time.monotonic() + 30
    while not accepted.keys() <= worker.claimed.keys():
        if time.monotonic() > deadline:
            lost = len(accepted.keys() - worker.claimed.keys())
            raise RuntimeError(f"{lost} events were never claimed")
        time.sleep(0.05)
    return [1000 * max(0.0, worker.claimed[key] - at) for key, at in accepted.items()]
