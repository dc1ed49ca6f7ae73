"""A worker and a sink: from blocks to a buffered dataset of two DAGs, and to its reader."""

import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from support.services.dispatcher import Live, Secrets, live
from support.services.postgres import Templates, copied
from support.waiting import eventually
from trace_etl.devtools.devchain import DevChain, start_server
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.model.storage import hot_table
from trace_etl.objects.file_store import FileStore
from trace_etl.queues.pgqueue import PgQueue
from trace_etl.sink.__main__ import run as run_sink
from trace_etl.sink.settings import SinkSettings
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.settings import SparkSettings
from trace_etl.worker.functions.threaded_runner import ThreadedRunner
from trace_etl.worker.settings import WorkerSettings
from trace_etl.worker.slots import work

CHAIN = """
name: chain
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - name: ingest
    operator: cryo_ingest
    inputs: [{from: {job: request}}]
    outputs: [blocks]
    config: {finality: 0}
publish: [{name: blocks, from: {job: ingest}}]
"""
PRODUCER = """
name: {name}
jobs:
  - name: alert
    operator: sql
    inputs: [{{from: {{dataset: blocks}}}}]
    outputs: [alerts]
    update_strategy: append
    unique_key: [id]
    config: {{sql: "SELECT concat('{name}-', block_number) AS id, block_number AS n FROM blocks"}}
publish:
  - name: alerts
    from: {{job: alert}}
    write_mode: buffered
    schema: [{{name: id, type: string, nullable: false}}, {{name: n, type: long}}]
"""
READER = """
name: reader
jobs:
  - name: count
    operator: sql
    execution_strategy: PerUpdate
    inputs: [{from: {dataset: alerts}}]
    outputs: [seen]
    config: {sql: "SELECT count(*) AS rows FROM alerts"}
publish: [{name: seen, from: {job: count}}]
"""


@pytest.fixture
def stack(
    templates: Templates, secrets: Secrets, runner: SparkRunner, tmp_path: Path
) -> Generator[Live]:
    objects = tmp_path / "objects"
    with (
        start_server(DevChain(3, 1000, initial=20, txs_per_block=1)) as chain,
        copied(templates) as dsns,
        live(secrets, dsns, objects, loops=True) as running,
    ):
        pools = {"default": (chain.url,)}
        mine = SparkRunner(
            SparkSettings(FileStore(objects), tmp_path, rpc_pools=pools, data_dsn=dsns.data)
        )
        mine.session = runner.session
        threaded = ThreadedRunner(mine, 2)
        stop = threading.Event()
        queue = PgQueue(dsns.queue)
        common = _common_settings(running, dsns)
        tokens = running.secrets.directory
        worker_settings = WorkerSettings(
            **common, worker_token_file=tokens / "worker", worker_id="test", spark_dir=tmp_path
        )
        sink_settings = SinkSettings(**common, service_token_file=tokens / "services" / "sink")
        threads = [
            threading.Thread(target=work, args=(worker_settings, queue, threaded, stop)),
            threading.Thread(target=run_sink, args=(sink_settings, queue, stop)),
        ]
        for thread in threads:
            thread.start()
        try:
            yield running
        finally:
            stop.set()
            for thread in threads:
                thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
        threaded.close()


def _common_settings(running: Live, dsns: Dsns) -> dict[str, Any]:
    return {
        "dispatcher_url": f"https://127.0.0.1:{running.cfg.internal_port}",
        "tls_ca": running.secrets.ca,
        "queue_dsn": dsns.queue,
        "objects_url": running.cfg.objects_url,
        "data_dsn": dsns.data,
    }


def test_rows_of_two_dags_reach_the_table_and_its_reader(stack: Live) -> None:
    with stack.user() as user:
        for text in (CHAIN, PRODUCER.format(name="a"), PRODUCER.format(name="b"), READER):
            reply = user.post("/v1/dags", json={"text": text})
            assert reply.status_code == 200, reply.text
        trigger = {"dag": "chain", "job": "request", "start": 0, "end": 9}
        assert user.post("/v1/triggers", json=trigger).status_code == 200
        batches = eventually(
            lambda: both_written(user.get("/v1/datasets/alerts/batches").json()["items"]),
            "both batches are written",
        )
        assert {(b["dag"], b["row_count"]) for b in batches} == {("a", 10), ("b", 10)}
        assert sorted(b["cursor"] for b in batches) == [1, 2]
        dataset = user.get("/v1/datasets/alerts").json()
        table = hot_table(UUID(dataset["dataset_uuid"]), UUID(dataset["dataset_version"]))
        with psycopg.connect(stack.dsns.data) as conn:
            ids = conn.execute(f'SELECT id FROM "{table}" ORDER BY id').fetchall()
        assert len(ids) == 20
        seen = eventually(
            lambda: dataset_read_up_to(user.get("/v1/datasets/seen").json(), 2),
            "both batches are read",
        )
        assert seen["row_count"] == seen["partitions"]


def both_written(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = [b for b in items if b["state"] == "written"]
    return done if len(done) == 2 else []


def dataset_read_up_to(dataset: dict[str, Any], cursor: int) -> dict[str, Any] | None:
    return dataset if dataset["range_end"] == cursor else None
