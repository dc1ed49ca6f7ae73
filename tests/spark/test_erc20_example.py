"""The ERC-20 example on a chain: history, transfers and daily volumes are consistent."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from support.chain.chain_rows import expected
from support.spark.dag_runs import run_dag
from support.spark.spark_tasks import rows
from trace_etl.devtools.devchain import DevChain
from trace_etl.spark.runner import SparkRunner

DAG = Path(__file__).parents[2] / "examples" / "erc20" / "dag.yaml"
TOPIC = bytes.fromhex("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef")


def expected_by_day(chain: DevChain) -> tuple[Counter[Any], Counter[Any]]:
    tables = expected(chain, 0, 39)
    times = {row["block_number"]: row["timestamp"] for row in tables["blocks"]}
    transfers, volume = Counter[Any](), Counter[Any]()
    for log in tables["logs"]:
        if (
            log["topic0"] == TOPIC
            and log["topic2"]
            and not log["topic3"]
            and len(log["data"]) >= 32
        ):
            day = datetime.fromtimestamp(times[log["block_number"]], UTC).date()
            transfers[day, log["address"]] += 1
            volume[day, log["address"]] += int.from_bytes(log["data"][:32], "big")
    return transfers, volume


def test_daily_volumes_match_the_transfers_of_the_chain(
    runner: SparkRunner, objects: Path, chain: DevChain
) -> None:
    done = run_dag(runner, DAG, 0, 39, 20)
    assert {job for job, _ in done} == {
        "ingest",
        "stamp",
        "transfers",
        "approvals",
        "daily_volumes",
    }
    transfers, volume = Counter[Any](), Counter[Any]()
    for start in (0, 20):
        for row in rows(objects, done["daily_volumes", start], "daily_volumes"):
            transfers[row["day"], row["token"]] += row["transfers"]
            volume[row["day"], row["token"]] += row["volume"]
    wanted, amounts = expected_by_day(chain)
    assert transfers == wanted and sum(wanted.values()) > 20
    assert all(abs(volume[key] - amount) <= 1e-9 * amount for key, amount in amounts.items())
