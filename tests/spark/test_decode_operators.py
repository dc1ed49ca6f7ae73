"""Tasks on Spark decode the logs of a chain into events."""

from pathlib import Path
from typing import Any

import pytest
from eth_abi import decode

from support.chain.chain_rows import expected
from support.spark.spark_tasks import as_input, ingest, range_scope, rows, task
from trace_etl.api.task.payload import TaskPayload
from trace_etl.devtools.devchain import DevChain
from trace_etl.spark.errors import BadTask
from trace_etl.spark.runner import SparkRunner

TRANSFER = "Transfer(address indexed from, address indexed to, uint256 value)"
TOPIC = bytes.fromhex("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef")


@pytest.fixture(scope="module")
def ingested(runner: SparkRunner) -> list[TaskPayload]:
    payloads = [ingest(0, 29, outputs=["logs"]), ingest(30, 59, outputs=["logs"])]
    for payload in payloads:
        runner.run(payload)
    return payloads


@pytest.fixture(scope="module")
def logs(chain: DevChain) -> list[dict[str, Any]]:
    return [row for row in expected(chain, 0, 59)["logs"] if row["topic0"] == TOPIC]


def _is_erc20(log: dict[str, Any]) -> bool:
    return log["topic2"] is not None and log["topic3"] is None and len(log["data"]) >= 32


def expected_transfer(log: dict[str, Any]) -> dict[str, Any]:
    [value] = decode(["uint256"], log["data"])
    return {
        "block_number": log["block_number"],
        "log_index": log["log_index"],
        "token": log["address"],
        "from_address": log["topic1"][12:],
        "to_address": log["topic2"][12:],
        "value_binary": log["data"][:32],
        "value_string": str(value),
        "value_f64": float(value),
    }


def test_erc20_transfers_are_decoded_as_by_eth_abi(
    runner: SparkRunner,
    objects: Path,
    ingested: list[TaskPayload],
    logs: list[dict[str, Any]],
) -> None:
    payload = task(
        "erc20_transfers",
        {},
        ["transfers"],
        scope=range_scope(0, 59),
        inputs=[as_input(*ingested, name="logs")],
    )
    runner.run(payload)
    found = rows(objects, payload, "transfers")
    wanted = [expected_transfer(log) for log in logs if _is_erc20(log)]
    assert len(wanted) > 20
    assert [{name: row[name] for name in wanted[0]} for row in found] == wanted


def test_one_task_outputs_decoded_events_and_undecoded_logs(
    runner: SparkRunner,
    objects: Path,
    ingested: list[TaskPayload],
    logs: list[dict[str, Any]],
) -> None:
    payload = task(
        "decode_logs",
        {"events": {"moved": TRANSFER, "approved": "Approval(address,address,uint256)"}},
        ["moved", "approved", "undecoded"],
        scope=range_scope(0, 59),
        inputs=[as_input(*ingested, name="logs")],
    )
    result = runner.run(payload)
    assert [output.row_count for output in result.outputs] == [
        len(rows(objects, payload, name)) for name in ("moved", "approved", "undecoded")
    ]
    keys = lambda some: [(row["block_number"], row["log_index"]) for row in some]  # noqa: E731
    others = [log for log in logs if not _is_erc20(log)]
    assert keys(rows(objects, payload, "moved")) == keys(filter(_is_erc20, logs))
    failed = [row for row in rows(objects, payload, "undecoded") if row["event"] == "Transfer"]
    assert keys(failed) == keys(others) and all(row["decode_error"] for row in failed)


def test_only_logs_of_the_listed_contracts_are_decoded(
    runner: SparkRunner,
    objects: Path,
    ingested: list[TaskPayload],
    logs: list[dict[str, Any]],
) -> None:
    proxy = next(log["address"] for log in logs if _is_erc20(log))
    abi = [
        {
            "type": "event",
            "name": "Transfer",
            "inputs": [
                {"name": "a", "type": "address", "indexed": True},
                {"name": "address", "type": "address", "indexed": True},
                {"name": "", "type": "uint256"},
            ],
        }
    ]
    payload = task(
        "decode_logs",
        {"abi": abi, "events": {"moved": "Transfer"}, "addresses": [f"0x{proxy.hex()}"]},
        ["moved"],
        scope=range_scope(0, 29),
        inputs=[as_input(*ingested, name="logs")],
    )
    runner.run(payload)
    found = rows(objects, payload, "moved")
    mine = [log for log in logs if log["address"] == proxy and log["block_number"] < 30]
    assert [row["arg_address"] for row in found] == [log["topic2"][12:] for log in mine]
    assert {row["decode_error"] for row in found} == {None}
    assert [row["arg2_string"] for row in found] == [
        expected_transfer(log)["value_string"] for log in mine
    ]


def test_an_empty_scope_gives_empty_files_with_all_columns(
    runner: SparkRunner, objects: Path, ingested: list[TaskPayload]
) -> None:
    payload = task(
        "decode_logs",
        {"events": {"odd": "Odd((uint8 a, string[] b)[2] indexed c, int200 d)"}},
        ["odd", "undecoded"],
        scope=range_scope(0, 29),
        inputs=[as_input(*ingested, name="logs")],
    )
    result = runner.run(payload)
    assert [output.row_count for output in result.outputs] == [0, 0]


def test_an_input_without_log_columns_is_refused(runner: SparkRunner) -> None:
    source = ingest(0, 9, outputs=["blocks"])
    runner.run(source)
    payload = task(
        "erc20_transfers",
        {},
        ["transfers"],
        scope=range_scope(0, 9),
        inputs=[as_input(source, name="blocks")],
    )
    with pytest.raises(BadTask, match="use a dataset of logs"):
        runner.run(payload)
