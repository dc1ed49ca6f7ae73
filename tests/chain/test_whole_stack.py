"""The whole stack on a real node: hot tables, derived datasets and cold Parquet.

Blocks are mined and replaced, the worker is killed, and every dataset ends up with the canonical
chain. `TRACE_CHAIN_ENGINE=streaming` uses the streaming follower.
"""

import os
import random
import signal
from typing import Any

import duckdb
import pyarrow as pa

from support.chain.chain_rows import rows_of
from support.services.anvil_stack import AnvilStack
from support.waiting import eventually

CHAIN_ID = 31337
_SECONDS = 2700  # between two blocks: 32 blocks per day
ENGINE = os.environ.get("TRACE_CHAIN_ENGINE", "loop")
_DAG = """
name: tip
defaults: {heartbeat_timeout: 4s}
jobs:
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    outputs: [hot_blocks, hot_transactions, hot_logs]
    config: {start_block: 0, poll_seconds: 0.5, engine: loop}  # a task follows each poll with new blocks
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
_DAILY_COLUMNS = ("block_number", "timestamp", "gas_used")


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


def test_every_dataset_holds_the_canonical_chain(anvil_stack: AnvilStack) -> None:
    stack, node = anvil_stack, anvil_stack.node
    rng = random.Random(5)
    node.mine(120, [1, 2], seconds=_SECONDS)
    stack.deploy(_DAG.replace("engine: loop", f"engine: {ENGINE}"))
    eventually(lambda: bool(stack.rows("SELECT * FROM kept")), "logs are derived")

    def is_followed() -> bool:
        hot = stack.hot()
        return bool(hot) and all(len(rows["blocks"]) == node.head + 1 for rows in hot)

    for depth in (rng.randint(2, 10), 64):
        node.mine(rng.randint(1, 5), [rng.randint(1, 99)], seconds=rng.randint(1, _SECONDS))
        eventually(is_followed, "every follower has every block")
        node.reorg(depth, [rng.randint(100, 199), rng.randint(200, 299)])
    os.kill(stack.worker(), signal.SIGKILL)
    node.reorg(3, [7])
    node.mine(2, [8])

    truth = rows_of(node.blocks(), CHAIN_ID)
    eventually(lambda: all(hot == truth for hot in stack.hot()), "all hot tables equal the chain")
    logs = [
        [row["block_number"], row["log_index"], row["transaction_hash"].hex(), row["topic0"].hex()]
        for row in truth["logs"]
    ]
    derived = "SELECT block_number, log_index, transaction, topic FROM kept ORDER BY 1, 2"
    eventually(lambda: stack.rows(derived) == logs, "derived rows equal the chain")
    days = recompute_days(truth["blocks"])
    assert len(days) > 2
    daily = "SELECT strftime(day, '%Y-%m-%d'), blocks, gas::BIGINT, last FROM daily ORDER BY 1"
    eventually(lambda: stack.rows(daily) == days, "daily aggregates equal a full recomputation")

    stack.trace("trigger", "tip", "request", "--range", f"0-{node.head}")
    hashes = [[row["block_number"], row["block_hash"].hex()] for row in truth["blocks"]]
    cold = "SELECT block_number, lower(hex(block_hash)) FROM cold ORDER BY 1"
    eventually(lambda: stack.rows(cold) == hashes, "cold Parquet equals the chain")
