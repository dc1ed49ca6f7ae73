"""ethereum-etl and Trace read the same chain: fields that both have are equal."""

import csv
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trace_etl.spark.evm.fetch import RangeReader, RpcSource
from trace_etl.spark.evm.tables import build_table

LENGTH = 200
TABLES = ("blocks", "transactions", "logs")
PROGRAM = Path(sys.prefix) / "ethereum-etl" / "bin" / "ethereumetl"
Row = dict[str, Any]


def _run(*arguments: str) -> None:
    subprocess.run([PROGRAM, *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def theirs(rpc_url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    out = tmp_path_factory.mktemp("etl")
    files = {name: out / f"{name}.csv" for name in (*TABLES, "receipts", "hashes")}
    provider = ("--provider-uri", rpc_url)
    span = ("--start-block", "0", "--end-block", str(LENGTH - 1))
    blocks, transactions = str(files["blocks"]), str(files["transactions"])
    _run(
        "export_blocks_and_transactions",
        *(*span, *provider, "--blocks-output", blocks, "--transactions-output", transactions),
    )
    hashes = [row["hash"] for row in _rows(files["transactions"])]
    files["hashes"].write_text("\n".join(hashes) + "\n")
    _run(
        "export_receipts_and_logs",
        *("--transaction-hashes", str(files["hashes"]), *provider),
        *("--receipts-output", str(files["receipts"]), "--logs-output", str(files["logs"])),
    )
    found = {name: _rows(file) for name, file in files.items() if name != "hashes"}
    receipts = {row["transaction_hash"]: row for row in found["receipts"]}
    for row in found["transactions"]:
        row["receipt"] = receipts[row["hash"]]
    return found


def _rows(file: Path) -> list[Row]:
    csv.field_size_limit(sys.maxsize)
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.fixture(scope="module")
def ours(rpc_url: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {table: [] for table in TABLES}
    with RangeReader(RpcSource((rpc_url,)), TABLES) as reader:
        for chunk in reader.chunks(0, LENGTH - 1):
            for table in TABLES:
                found[table] += build_table(table, chunk, reader.chain_id()).to_pylist()
    return found


def _hex(value: bytes | None) -> str:
    return "" if value is None else f"0x{value.hex()}"


def _text(value: int | str | None) -> str:
    return "" if value is None else str(value)


def _topics(row: Row) -> str:
    topics = [row[f"topic{n}"] for n in range(4)]
    return ",".join(_hex(topic) for topic in topics if topic is not None)


# Columns of ethereum-etl, and how to compute them from our rows.
_OVERLAP: dict[str, dict[str, Callable[[Row], str]]] = {
    "blocks": {
        "number": lambda row: _text(row["block_number"]),
        "hash": lambda row: _hex(row["block_hash"]),
        "miner": lambda row: _hex(row["author"]),
        "gas_used": lambda row: _text(row["gas_used"]),
        "extra_data": lambda row: _hex(row["extra_data"]),
        "timestamp": lambda row: _text(row["timestamp"]),
        "base_fee_per_gas": lambda row: _text(row["base_fee_per_gas"]),
    },
    "transactions": {
        "block_number": lambda row: _text(row["block_number"]),
        "transaction_index": lambda row: _text(row["transaction_index"]),
        "hash": lambda row: _hex(row["transaction_hash"]),
        "nonce": lambda row: _text(row["nonce"]),
        "from_address": lambda row: _hex(row["from_address"]),
        "to_address": lambda row: _hex(row["to_address"]),
        "value": lambda row: row["value_string"],
        "input": lambda row: _hex(row["input"]),
        "gas": lambda row: _text(row["gas_limit"]),
        "gas_price": lambda row: _text(row["gas_price"]),
        "transaction_type": lambda row: _text(row["transaction_type"]),
        "max_fee_per_gas": lambda row: _text(row["max_fee_per_gas"]),
        "max_priority_fee_per_gas": lambda row: _text(row["max_priority_fee_per_gas"]),
    },
    "logs": {
        "block_number": lambda row: _text(row["block_number"]),
        "transaction_index": lambda row: _text(row["transaction_index"]),
        "log_index": lambda row: _text(row["log_index"]),
        "transaction_hash": lambda row: _hex(row["transaction_hash"]),
        "address": lambda row: _hex(row["address"]),
        "data": lambda row: _hex(row["data"]),
        "topics": _topics,
    },
}
_ORDER = ("number", "block_number", "transaction_index", "log_index")


@pytest.mark.parametrize("table", TABLES)
def test_common_fields_equal_those_of_ethereum_etl(
    ours: dict[str, list[Row]], theirs: dict[str, list[Row]], table: str
) -> None:
    columns = _OVERLAP[table]
    keys = [name for name in _ORDER if name in columns]
    expected = [{name: row[name] for name in columns} for row in theirs[table]]
    expected.sort(key=lambda row: [int(row[name]) for name in keys])
    mine = [{name: value(row) for name, value in columns.items()} for row in ours[table]]
    assert len(mine) > LENGTH / 2
    assert mine == expected


def test_receipts_equal_those_of_ethereum_etl(
    ours: dict[str, list[Row]], theirs: dict[str, list[Row]]
) -> None:
    receipts = {row["hash"]: row["receipt"] for row in theirs["transactions"]}
    for row in ours["transactions"]:
        expected = receipts[_hex(row["transaction_hash"])]
        assert expected["gas_used"] == str(row["gas_used"])
        assert expected["status"] == str(int(row["success"]))
