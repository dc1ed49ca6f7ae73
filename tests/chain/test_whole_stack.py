"""The whole stack on a real node: hot tables, derived datasets and cold Parquet.

Blocks are mined and replaced, the worker is killed, and every dataset ends up with the canonical
chain. `TRACE_CHAIN_ENGINE=streaming` uses the streaming follower.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Generator
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row

from support.chain import anvil
from support.chain.anvil import Anvil
from support.chain.chain_rows import rows_of
from support.services.whole_stack import connect
from support.waiting import eventually
from trace_etl.cli.client import RequestRejected
from trace_etl.lite import stack as lite
from trace_etl.lite.home import Home

TRACE = [sys.executable, "-c", "from trace_etl.cli.main import main; main()"]
CHAIN_ID = 31337
_SECONDS = 5400  # between two blocks: 16 blocks per day
ENGINE = os.environ.get("TRACE_CHAIN_ENGINE", "loop")
_DAG = """
name: tip
defaults: {heartbeat_timeout: 4s}
jobs:
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    outputs: [hot_blocks, hot_transactions, hot_logs]
    config: {start_block: 0, poll_seconds: 0.1, engine: loop}
  - name: kept
    operator: sql
    inputs: [{from: {job: follow, output: hot_logs}}]
    outputs: [kept]
    execution_strategy: PerUpdate
    scaling: {max_concurrency: 1}
    config:
      sql: >
        SELECT block_number, log_index, lower(hex(transaction_hash)) AS transaction,
               lower(hex(topic0)) AS topic FROM hot_logs
  - name: stamped
    operator: sql
    inputs: [{from: {job: follow, output: hot_blocks}}]
    outputs: [stamped]
    execution_strategy: PerUpdate
    scaling: {max_concurrency: 1}
    config: {sql: "SELECT block_number, timestamp, gas_used FROM hot_blocks"}
  - name: daily
    operator: sql
    inputs: [{from: {job: stamped}, time: timestamp}]
    outputs: [daily]
    partition_by: day
    config:
      sql: >
        SELECT to_date(timestamp_seconds(timestamp)) AS day, count(*) AS blocks, sum(gas_used) AS gas,
               max(block_number) AS last FROM stamped GROUP BY ALL
  - name: request
    source: {kind: manual}
    outputs: [ranges]
  - name: ingest
    operator: cryo_ingest
    inputs: [{from: {job: request}}]
    outputs: [blocks]
    config: {finality: 0}
publish:
  - {name: kept, from: {job: kept}}
  - {name: cold, from: {job: ingest}}
  - {name: daily, from: {job: daily}}
"""


class Stack:
    """A home, and the command line for it."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def trace(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "TRACE_HOME": str(self.home), "TRACE_RETRY_INITIAL": "PT1S"}
        return subprocess.run([*TRACE, *words], capture_output=True, text=True, env=environment)

    def json(self, *words: str) -> Any:
        done = self.trace(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def rows(self, sql: str) -> list[list[Any]]:
        """Run a query. Returns no rows while the dataset does not exist.

        A new process per poll would take the cores from Spark.
        """
        with connect(self.home) as client:
            try:
                return client.query(sql)["rows"]
            except RequestRejected:
                return []

    def worker(self) -> int:
        parts = json.loads(self.trace("status", "--json").stdout)["parts"]
        return next(part["pid"] for part in parts if part["name"] == "worker")

    @cached_property
    def _data(self) -> str:
        """The worker's connection string to Postgres data."""
        entries = Path(f"/proc/{self.worker()}/environ").read_text().split("\0")
        pairs = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        return pairs["TRACE_DATA_DSN"]

    def hot(self) -> dict[str, list[dict[str, Any]]]:
        """Return every row of the hot tables. A column that only one table has identifies it."""
        found: dict[str, list[dict[str, Any]]] = {}
        with psycopg.connect(self._data, row_factory=dict_row) as conn:
            tables = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'dataset%'"
            for table in [row["tablename"] for row in conn.execute(tables)]:
                rows = conn.execute(f"SELECT * FROM {table}").fetchall()
                kind = next(
                    (k for k, column in _UNIQUE_COLUMNS.items() if rows and column in rows[0]), ""
                )
                found[kind] = sorted(rows, key=sort_key)
        return found


_DAILY_COLUMNS = ("block_number", "timestamp", "gas_used")
_UNIQUE_COLUMNS = {"blocks": "author", "transactions": "nonce", "logs": "topic0"}


def sort_key(row: dict[str, Any]) -> tuple[int, ...]:
    keys = ("block_number", "transaction_index", "log_index")
    return tuple(row[key] for key in keys if key in row)


@pytest.fixture
def node() -> Generator[Anvil]:
    with anvil.running(Path(__file__).parent) as made:
        yield made


@pytest.fixture
def stack(node: Anvil, tmp_path: Path) -> Generator[Stack]:
    made = Stack(tmp_path / "home")
    try:
        started = made.trace("up", "--detach", "--rpc-url", node.url)
        assert started.returncode == 0, started.stderr
        yield made
    finally:
        lite.purge(Home(made.home))


def recompute_days(blocks: list[dict[str, Any]]) -> list[list[Any]]:
    """Aggregate the whole chain by day in DuckDB."""
    table = pa.table({name: [row[name] for row in blocks] for name in _DAILY_COLUMNS})
    with duckdb.connect() as con:
        con.register("blocks", table)
        rows = con.execute(
            "SELECT strftime(to_timestamp(timestamp) AT TIME ZONE 'UTC', '%Y-%m-%d'), count(*),"
            " sum(gas_used), max(block_number) FROM blocks GROUP BY 1 ORDER BY 1"
        ).fetchall()
    return [[day, count, int(gas), last] for day, count, gas, last in rows]


def test_every_dataset_holds_the_canonical_chain(node: Anvil, stack: Stack, tmp_path: Path) -> None:
    rng = random.Random(5)
    node.mine(90, [1, 2], seconds=_SECONDS)
    dag = tmp_path / "dag.yaml"
    dag.write_text(_DAG.replace("engine: loop", f"engine: {ENGINE}"))
    deployed = stack.trace("deploy", "--no-check", str(dag))
    assert deployed.returncode == 0, deployed.stderr + deployed.stdout
    eventually(lambda: bool(stack.rows("SELECT * FROM kept")), "logs are derived")

    for depth in (rng.randint(2, 10), 64):
        node.mine(rng.randint(1, 5), [rng.randint(1, 99)], seconds=rng.randint(1, _SECONDS))
        eventually(lambda: len(stack.hot().get("blocks", [])) == node.head + 1, "followed")
        node.reorg(depth, [rng.randint(100, 199), rng.randint(200, 299)])
    os.kill(stack.worker(), signal.SIGKILL)
    node.reorg(3, [7])
    node.mine(2, [8])

    truth = rows_of(node.blocks(), CHAIN_ID)
    eventually(lambda: stack.hot() == truth, "the hot tables equal the chain")
    logs = [
        [row["block_number"], row["log_index"], row["transaction_hash"].hex(), row["topic0"].hex()]
        for row in truth["logs"]
    ]
    derived = "SELECT block_number, log_index, transaction, topic FROM kept ORDER BY 1, 2"
    eventually(lambda: stack.rows(derived) == logs, "derived rows equal the chain")
    days = recompute_days(truth["blocks"])
    assert len(days) > 3
    daily = "SELECT strftime(day, '%Y-%m-%d'), blocks, gas::BIGINT, last FROM daily ORDER BY 1"
    eventually(lambda: stack.rows(daily) == days, "daily aggregates equal a full recomputation")

    stack.json("trigger", "tip", "request", "--range", f"0-{node.head}")
    hashes = [[row["block_number"], row["block_hash"].hex()] for row in truth["blocks"]]
    cold = "SELECT block_number, lower(hex(block_hash)) FROM cold ORDER BY 1"
    eventually(lambda: stack.rows(cold) == hashes, "cold Parquet equals the chain")
