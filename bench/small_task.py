"""Compare a small task on the whole platform with the plain Spark action that it runs."""

import ssl
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from bench.harness import Result, compare
from trace_etl.devtools.devchain import DevChain, start_server
from trace_etl.lite import stack
from trace_etl.lite.connection import StackConnection
from trace_etl.lite.home import Home
from trace_etl.lite.options import Options
from trace_etl.lite.processes import detached
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.session.warm_session import WarmSession
from trace_etl.spark.settings import SparkSettings

BLOCKS = 20  # per partition
SELECT = "SELECT address, count(*) AS n FROM logs GROUP BY address"

_DAG = f"""
name: bench
jobs:
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
  - name: ingest
    operator: cryo_ingest
    inputs: [{{from: {{job: request}}}}]
    outputs: [logs]
  - name: small
    operator: sql
    inputs: [{{from: {{job: ingest}}}}]
    outputs: [small]
    config: {{sql: "{SELECT}"}}
publish:
  - {{name: logs, from: {{job: ingest, output: logs}}}}
"""


class Platform:
    """A stack that processes one range after the other."""

    def __init__(self, connection: StackConnection) -> None:
        context = ssl.create_default_context(cafile=connection.ca)
        token = Path(connection.user_token).read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(
            base_url=connection.api_url, verify=context, headers=headers, trust_env=False
        )
        self._next = 0
        self._post("/v1/dags", {"text": _DAG})

    def one_task(self) -> float:
        """Return the seconds from queuing the small task to its committed completion."""
        start = self._next * BLOCKS
        self._next += 1
        span = {"start": start, "end": start + BLOCKS - 1}
        self._post("/v1/triggers", {"dag": "bench", "job": "request", **span})
        key = f"{start}-{start + BLOCKS - 1}"
        while True:
            page = self._http.get("/v1/tasks", params={"job": "small", "limit": 5}).json()
            for task in page["items"]:
                if task["partition_key"] == key and task["status"] == "Completed":
                    return _seconds(task)
            time.sleep(0.02)

    def _post(self, path: str, body: dict[str, Any]) -> None:
        self._http.post(path, json=body).raise_for_status()


def _seconds(task: dict[str, Any]) -> float:
    began, ended = (datetime.fromisoformat(task[k]) for k in ("queued_at", "finished_at"))
    return (ended - began).total_seconds()


class PlainSpark:
    """Runs the same SELECT over the same file in a warm session of plain Spark."""

    def __init__(self, home: Home, directory: Path) -> None:
        settings = SparkSettings(objects=FileStore(home.objects), spark_dir=directory / "spark")
        self._warm = WarmSession(settings)
        self._spark = self._warm.get()
        self._files = sorted(str(p) for p in home.objects.rglob("logs_*.parquet"))
        self._schema = self._spark.read.parquet(self._files[0]).schema
        self._directory = directory
        self._turn = 0

    def one_action(self) -> float:
        file = self._files[self._turn % len(self._files)]
        self._turn += 1
        began = time.perf_counter()
        self._spark.read.schema(self._schema).parquet(file).createOrReplaceTempView("logs")
        out = str(self._directory / f"out-{self._turn}")
        self._spark.sql(SELECT).coalesce(1).write.parquet(out)
        return time.perf_counter() - began

    def close(self) -> None:
        self._warm.close()


def run() -> list[Result]:
    """Compare wake-up, claim, run, write and fenced completion with read, select and write."""
    with (
        tempfile.TemporaryDirectory(prefix="trace-bench-") as name,
        start_server(DevChain(length=2000), "127.0.0.1", 0) as chain,
    ):
        directory = Path(name)
        home = Home(directory / "home")
        connection, _ = detached.start(home, Options((chain.url,)))
        try:
            platform = Platform(connection)
            for _ in range(6):
                platform.one_task()
            bare = PlainSpark(home, directory)
            for _ in range(6):
                bare.one_action()
            try:
                return [
                    compare(
                        "small_task_vs_spark",
                        platform.one_task,
                        bare.one_action,
                        unit="s",
                        goal="<= 1.3",
                        rounds=15,
                    )
                ]
            finally:
                bare.close()
        finally:
            stack.purge(home)
