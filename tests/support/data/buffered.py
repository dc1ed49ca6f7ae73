"""Buffered datasets in tests: DAGs that publish the same name, and a sink next to a Dispatcher."""

import json
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pyarrow as pa
from psycopg.rows import dict_row

from support import queue_tables
from support.lifecycle.lifecycle import Attempt, Bench, bench
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied
from trace_etl.data import buffers
from trace_etl.data.buffer_writer import BufferWriter
from trace_etl.data.buffers import BufferTable, RowBatch, WrittenBatch
from trace_etl.data.columns import declared_arrow_type
from trace_etl.data.connection import Conn
from trace_etl.http.clients.sink_client import SinkClient
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.model.storage import hot_table
from trace_etl.objects.file_store import FileStore
from trace_etl.queues.pgqueue import PgQueue
from trace_etl.sink.sink import QUEUE, Delivery, Sink

SCHEMA = "[{name: id, type: string, nullable: false}, {name: n, type: long}]"
_JOB = """
  - name: {job}
    operator: sql
    inputs: [{{from: {{job: request}}}}]
    outputs: [out]
    update_strategy: append
    unique_key: [{key}]
    config: {{sql: "SELECT {column} FROM ranges"}}
"""
_ENTRY = """
  - {{name: {name}, from: {{job: {job}}}, write_mode: buffered, schema: {schema}}}
"""


@dataclass
class Producer:
    """A DAG whose jobs all publish the same buffered dataset."""

    bench: Bench
    published: str
    name: str = field(default_factory=lambda: f"b_{uuid4().hex[:12]}")

    def text(self, *jobs: str, schema: str = SCHEMA, key: str = "id", column: str = "1") -> str:
        jobs_text = "".join(_JOB.format(job=job, key=key, column=column) for job in jobs)
        entries = "".join(
            _ENTRY.format(name=self.published, job=job, schema=schema) for job in jobs
        )
        source = "  - name: request\n    source: {kind: manual}\n    outputs: [ranges]\n"
        publish = f"publish:\n{entries}" if jobs else ""
        return f"name: {self.name}\njobs:\n{source}{jobs_text}{publish}"

    def post(self, *jobs: str, **change: str) -> Any:
        return self.bench.user.post("/v1/dags", json={"text": self.text(*jobs, **change)})

    def deploy(self, *jobs: str, **change: str) -> dict[str, Any]:
        reply = self.post(*jobs, **change)
        assert reply.status_code == 200, reply.text
        return {d["job"]: d for d in reply.json()["datasets"]}

    def attempt(self, job: str, block: int = 0) -> Attempt:
        body = {"dag": self.name, "job": "request", "start": block, "end": block}
        assert self.bench.user.post("/v1/triggers", json=body).status_code == 200
        self.bench.live.drain()
        query = {"dag": self.name, "job": job, "status": "Queued"}
        items = self.bench.user.get("/v1/tasks", params=query).json()["items"]
        (task,) = [item for item in items if item["partition_key"] == f"{block}-{block}"]
        return self.bench.claimed(task["task_id"])


def publish_unwritten(bench: Bench) -> str:
    """Publish a batch whose file does not exist. Returns its id."""
    producer = Producer(bench, f"alerts_{uuid4().hex[:12]}")
    producer.deploy("one")
    attempt = producer.attempt("one")
    reply = bench.publish(attempt, **batch_target(attempt))
    assert reply.status_code == 200, reply.text
    return reply.json()["publish_id"]


def batch_target(attempt: Attempt, name: str = "batch.jsonl") -> dict[str, Any]:
    """Return the dataset and the address of a batch that the attempt may publish."""
    ref = attempt.output["storage_ref"]
    uri = f"s3://{ref['bucket']}/{ref['prefix']}{name}"
    return {"dataset_uuid": attempt.output["dataset_uuid"], "batch_uri": uri}


def write_rows(
    conn: Conn, shape: BufferTable, number: int, rows: Sequence[Sequence[Any]]
) -> WrittenBatch:
    """Write a batch of rows to a table of a buffered dataset, in the caller's transaction."""
    fields = [(name, declared_arrow_type(kind)) for name, kind, _ in shape.columns]
    names = [name for name, _ in fields]
    table = pa.Table.from_pylist(
        [dict(zip(names, row, strict=True)) for row in rows], schema=pa.schema(fields)
    )
    batch = RowBatch(uuid4(), number, UUID(int=1), table)
    return buffers.write_batches(conn, shape, [batch])[batch.publish_id]


@dataclass
class SinkSetup:
    """A Dispatcher with its own databases, and a sink next to it."""

    bench: Bench
    sink: Sink
    data_dsn: str
    client: Callable[[Callable[[], str]], SinkClient]
    """Creates the client of another sink, with the given token."""

    def producer(self, published: str) -> Producer:
        return Producer(self.bench, published)

    def publish(self, attempt: Attempt, rows: list[Any] | bytes, **fields: Any) -> str:
        """Write a batch under the attempt's prefix and publish it. Returns the publish id."""
        ref = attempt.output["storage_ref"]
        root = self.bench.live.objects
        directory = root / ref["bucket"] / ref["prefix"]
        directory.mkdir(parents=True, exist_ok=True)
        name = f"{uuid4().hex}.jsonl"
        content = (
            rows if isinstance(rows, bytes) else b"\n".join(json.dumps(r).encode() for r in rows)
        )
        (directory / name).write_bytes(content)
        uri = f"s3://{ref['bucket']}/{ref['prefix']}{name}"
        target = {"dataset_uuid": attempt.output["dataset_uuid"], "batch_uri": uri, **fields}
        reply = self.bench.publish(attempt, **target)
        assert reply.status_code == 200, reply.text
        self.bench.live.drain()
        return reply.json()["publish_id"]

    def drain(self) -> None:
        while self.sink.write_once():
            pass
        self.bench.live.drain()

    def rows(self, dataset: dict[str, Any]) -> list[dict[str, Any]]:
        table = hot_table(UUID(dataset["dataset_uuid"]), UUID(dataset["dataset_version"]))
        with psycopg.connect(self.data_dsn, row_factory=dict_row) as conn:
            return conn.execute(f'SELECT * FROM "{table}" ORDER BY id').fetchall()

    def write_without_report(self, publish_id: str) -> None:
        """Write a batch like a sink that dies before it reports."""
        (message,) = [
            m
            for m in self.sink.consumer.receive(limit=64, visibility=timedelta(0))
            if m.body["publish_id"] == publish_id
        ]
        self.sink._write_group([Delivery(message, UUID(publish_id))])

    def values(self, dataset: dict[str, Any]) -> list[tuple[str, int | None]]:
        return [(row["id"], row["n"]) for row in self.rows(dataset)]

    def batches(self, name: str, **query: str) -> list[dict[str, Any]]:
        reply = self.bench.user.get(f"/v1/datasets/{name}/batches", params=query)
        assert reply.status_code == 200, reply.text
        return reply.json()["items"]

    def receives(self, publish_id: str) -> list[int]:
        """Return how often each waiting message of a batch was received."""
        return queue_tables.batch_receives(self.bench.live.dsns.queue, QUEUE, publish_id)

    def set_receives(self, publish_id: str, times: int) -> None:
        """Set how often the message of a batch was received."""
        queue_tables.set_batch_receives(self.bench.live.dsns.queue, publish_id, times)

    def show_hidden_messages(self) -> None:
        queue_tables.show_all(self.bench.live.dsns.queue)


@contextmanager
def running_sink(templates: Templates, secrets: Secrets, objects: Path) -> Generator[SinkSetup]:
    """Run a Dispatcher and a sink on fresh databases."""
    with copied(templates) as dsns, running_sink_on(dsns, secrets, objects) as setup:
        yield setup


@contextmanager
def running_sink_on(dsns: Dsns, secrets: Secrets, objects: Path) -> Generator[SinkSetup]:
    """Run a Dispatcher and a sink on the given databases."""
    with live(secrets, dsns, objects) as running, bench(running) as test_bench:
        url = f"https://127.0.0.1:{running.cfg.internal_port}"

        def client(token: Callable[[], str]) -> SinkClient:
            return SinkClient(url, secrets.ca, token)

        sink_client = client(lambda: secrets.service_token("sink"))
        writer = BufferWriter(dsns.data)
        consumer = PgQueue(dsns.queue).consumer([QUEUE], "test:sink")
        try:
            sink = Sink(consumer, sink_client, writer, FileStore(objects), threading.Event())
            yield SinkSetup(test_bench, sink, dsns.data, client)
        finally:
            writer.close()
            consumer.close()
            sink_client.close()
