"""Two Dispatcher processes over one Postgres. All of them are killed and restarted under load."""

import random
import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from support.lifecycle.lifecycle import write_parquet_output
from support.lifecycle.recorder import Recorder
from support.processes import DispatcherProcess
from support.services.dispatcher import Secrets
from support.services.postgres import sql
from support.waiting import eventually
from trace_etl.lite.postgres import databases
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.lite.postgres.server import EmbeddedPostgres
from trace_etl.queues.pgqueue import PgQueue
from trace_etl.queues.queue import QueueUnavailable
from trace_etl.state.db import migrations

TASKS = 60
"""Tasks of each of two jobs. The second job runs once per partition of the first."""
KILLS = 3
DAG = """
name: replicas
defaults: {max_attempts: 100, heartbeat_timeout: 2s}
jobs:
  - {name: request, activation: source, source: {kind: manual}, outputs: [ranges]}
  - name: split
    operator: range_splitter
    inputs: [{from: {job: request}}]
    outputs: [parts]
    config: {size: 10}
  - name: work
    operator: sql
    inputs: [{from: {job: split}}]
    outputs: [out]
    config: {sql: "SELECT 1 FROM parts"}
  - name: after
    operator: sql
    inputs: [{from: {job: work}}]
    outputs: [count_completed]
    scaling: {max_concurrency: 6}
    config: {sql: "SELECT 1 FROM out"}
"""
SOURCE = {"dag": "replicas", "job": "request"}
QUICK = {
    "TRACE_RETRY_INITIAL": "PT0.2S",
    "TRACE_RETRY_MAX": "PT1S",
    "TRACE_OUTBOX_HOLD": "PT1S",
    "TRACE_REAPER_GRACE": "PT0S",
}


@dataclass
class World:
    postgres: EmbeddedPostgres
    dsns: Dsns
    secrets: Secrets
    replicas: list[DispatcherProcess]
    recorder: Recorder = field(default_factory=Recorder)
    over: threading.Event = field(default_factory=threading.Event)

    def client(self, actor: str) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(self.secrets.ca))
        client = httpx.Client(verify=context, timeout=5, trust_env=False)
        return self.recorder.watch(client, actor)


@pytest.fixture
def world(tmp_path: Path) -> Generator[World]:
    (tmp_path / "pg").mkdir()
    postgres = EmbeddedPostgres(tmp_path / "pg" / "cluster")
    server = postgres.start()
    secrets = Secrets.make(tmp_path / "secrets")
    try:
        dsns = databases.provision(server)
        migrations.apply(dsns.state)
        PgQueue(dsns.queue).prepare()
        replicas = [
            DispatcherProcess(secrets, dsns, tmp_path / "dispatcher", QUICK) for _ in range(2)
        ]
        for replica in replicas:
            replica.start()
        try:
            yield World(postgres, dsns, secrets, [replica.up() for replica in replicas])
        finally:
            for replica in replicas:
                replica.kill()
    finally:
        postgres.stop()
        postgres.remove()


class Worker(threading.Thread):
    """Claims, sends heartbeats and completes. Sometimes it fails, disappears or repeats a call."""

    def __init__(self, world: World, n: int) -> None:
        super().__init__(name=f"w{n}")
        self.world = world
        self.rng = random.Random(n)
        self.http = world.client(self.name)
        self.error: BaseException | None = None
        # Half of the workers wait for wake-ups, half claim whatever is ready.
        runtimes = ["ecs_python"]
        queue = PgQueue(world.dsns.queue)
        self.consumer = queue.consumer(runtimes, self.name) if n % 2 else None

    def run(self) -> None:
        try:
            while not self.world.over.is_set():
                for claimed in self.claims():
                    self.work(claimed)
        except BaseException as error:
            self.error = error
        finally:
            self.http.close()
            if self.consumer is not None:
                self.consumer.close()

    # --- calls ------------------------------------------------------------------------------

    def post(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> httpx.Response:
        """Call one replica once. Raises TransportError."""
        replica = self.rng.choice(self.world.replicas)
        return self.http.post(f"{replica.internal_url}{path}", json=body, headers=headers)

    def post_until_answered(
        self, path: str, headers: dict[str, str], body: dict[str, Any]
    ) -> httpx.Response | None:
        """Retry like a worker until a replica answers. Returns None when the test is over."""
        while not self.world.over.is_set():
            try:
                reply = self.post(path, headers, body)
                if reply.status_code < 500:
                    return reply
                assert reply.status_code == 503, reply.text
            except httpx.TransportError:
                pass
            self.world.over.wait(self.rng.uniform(0.02, 0.2))
        return None

    def claims(self) -> list[dict[str, Any]]:
        headers = {"X-Trace-Worker-Token": self.world.secrets.worker_token}
        if self.consumer is None:
            body = {"runtime": "ecs_python", "worker_id": self.name, "max_tasks": 3}
            reply = self.post_until_answered("/internal/task-claim-many", headers, body)
            claimed = reply.json()["claimed"] if reply else []
        else:
            claimed = [
                won for task_id in self.receive_wake_ups() for won in self.claim(task_id, headers)
            ]
        if not claimed:
            self.world.over.wait(0.05)
        return claimed

    def receive_wake_ups(self) -> list[str]:
        assert self.consumer is not None
        try:
            messages = self.consumer.receive(limit=2, visibility=timedelta(seconds=2))
            for message in messages:
                self.consumer.delete(message)
            return [message.body["task_id"] for message in messages]
        except QueueUnavailable:
            return []

    def claim(self, task_id: str, headers: dict[str, str]) -> list[dict[str, Any]]:
        body = {"task_id": task_id, "worker_id": self.name}
        reply = self.post_until_answered("/internal/task-claim", headers, body)
        won = reply is not None and reply.json()["status"] == "Claimed"
        return [reply.json()] if reply is not None and won else []

    # --- an attempt -------------------------------------------------------------------------

    def work(self, claimed: dict[str, Any]) -> None:
        headers = {"X-Trace-Task-Capability": claimed["capability_token"]}
        fence = {
            "task_id": claimed["task"]["task_id"],
            "attempt": claimed["attempt"],
            "lease_token": claimed["lease_token"],
        }
        fate = self.rng.random()
        if fate < 0.04:
            return  # the worker disappears: the lease expires
        if fate < 0.3:
            beat = self.post_until_answered("/v1/task/heartbeat", headers, fence)
            if beat is None or beat.status_code == 409:
                return
        body = {**fence, **(self.failed() if fate > 0.9 else self.completed(claimed))}
        reply = self.post_until_answered("/v1/task/complete", headers, body)
        if reply is not None and self.rng.random() < 0.1:
            again = self.post_until_answered("/v1/task/complete", headers, body)
            assert again is None or again.status_code in (200, 409), again.text

    def failed(self) -> dict[str, Any]:
        return {"status": "Failed", "error_message": "boom"}

    def completed(self, claimed: dict[str, Any]) -> dict[str, Any]:
        output, scope = claimed["task"]["outputs"][0], claimed["task"]["scope"]
        ref = output["storage_ref"]
        objects = self.world.replicas[0].directory / "objects"
        directory = objects / ref["bucket"] / ref["prefix"]
        write_parquet_output(directory, "rows.parquet", rows=1)
        dataset = {k: output[k] for k in ("dataset_uuid", "dataset_version")}
        start, end = scope["start"], scope["end"]
        event = {**dataset, "partition_key": f"{start}-{end}", "start": start, "end": end}
        published = {**dataset, "storage_ref": ref, "range_start": start, "range_end": end}
        return {"status": "Completed", "events": [event], "datasets_published": [published]}


@contextmanager
def running_workers(world: World, count: int) -> Generator[None]:
    workers = [Worker(world, n) for n in range(count)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        world.over.set()
        for worker in workers:
            worker.join(300)
    for worker in workers:
        if worker.error:
            raise worker.error


def count_completed(world: World, job: str) -> int:
    """Return how many tasks of a job have completed, or -1 while Postgres is down."""
    query = """
        SELECT count(*) FROM tasks JOIN jobs USING (job_id)
         WHERE jobs.name = %s AND status = 'Completed'
    """
    try:
        return sql(world.dsns.state, query, (job,))[0][0]
    except psycopg.OperationalError:
        return -1


def deploy_and_trigger(world: World) -> None:
    headers = {"Authorization": f"Bearer {world.secrets.user_token}"}
    with world.client("user") as http:
        for path, body in (
            ("/v1/dags", {"text": DAG}),
            (
                "/v1/triggers",
                {"dag": "replicas", "job": "request", "start": 0, "end": TASKS * 10 - 1},
            ),
        ):
            reply = http.post(f"{world.replicas[0].api_url}{path}", json=body, headers=headers)
            assert reply.status_code == 200, reply.text


def test_killing_dispatchers_and_postgres_loses_and_duplicates_nothing(
    world: World, tmp_path: Path
) -> None:
    rng = random.Random(7)
    deploy_and_trigger(world)
    with running_workers(world, 6):
        for n in range(KILLS):
            share = TASKS * (n + 1) // (KILLS + 2)
            eventually(
                lambda share=share: count_completed(world, "work") >= share,
                f"{share} tasks are completed",
            )
            replica = rng.choice(world.replicas)
            replica.kill()
            if n == 1:
                world.postgres.stop()
                world.postgres.start()
            replica.up()
        eventually(
            lambda: count_completed(world, "work") == TASKS,
            "every task of the first job is completed",
        )
        eventually(
            lambda: count_completed(world, "after") == TASKS,
            "every task of the second job is completed",
        )
    world.recorder.dump(world.dsns, messages=False)
    saved = world.recorder.save(tmp_path / "history.jsonl")
    verdict = world.recorder.verdict()
    assert verdict.proven, (saved, verdict.violations)
    assert verdict.tasks == 2 * TASKS
    assert verdict.attempts > verdict.tasks, "no task was retried, so the kills had no effect"
    assert verdict.unanswered > 0, "every call was answered, so the kills had no effect"
    counts = "SELECT count(*), count(DISTINCT (dataset_version, range_start)) FROM partitions"
    assert sql(world.dsns.state, counts) == [(2 * TASKS, 2 * TASKS)]
