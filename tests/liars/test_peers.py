"""The same lies told to cryo and ethereum-etl: `make test-liars` prints which tool wrote wrong data."""

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from support.chain import cryo
from support.chain.lying_node import FAULTS, LAST, LyingNode

ETL = Path(sys.prefix) / "ethereum-etl" / "bin" / "ethereumetl"
TABLES = ("blocks", "transactions", "logs")
RIGHT, REFUSED, WRONG = "right rows", "error, no rows", "**wrong rows**"
INCOMPLETE = "**a table is missing, no error**"
Rows = dict[str, list[Any]]


def run_cryo(url: str, into: Path) -> Rows:
    cryo.freeze(TABLES, LAST + 1, url, into, chunk=LAST + 1)
    files = {table: list(into.glob(f"*__{table}__*.parquet")) for table in TABLES}
    return {
        table: sorted((r for f in found for r in pq.read_table(f).to_pylist()), key=repr)
        for table, found in files.items()
        if found
    }


def run_ethereum_etl(url: str, into: Path) -> Rows:
    into.mkdir()
    files = {name: into / f"{name}.csv" for name in (*TABLES, "receipts")}
    span = ("--start-block", "0", "--end-block", str(LAST))
    blocks, transactions = str(files["blocks"]), str(files["transactions"])
    _run_etl(
        "export_blocks_and_transactions",
        *(*span, "--provider-uri", url),
        *("--blocks-output", blocks, "--transactions-output", transactions),
    )
    hashes = into / "hashes"
    hashes.write_text("\n".join(row["hash"] for row in _read_csv(files["transactions"])) + "\n")
    _run_etl(
        "export_receipts_and_logs",
        *("--transaction-hashes", str(hashes), "--provider-uri", url),
        *("--receipts-output", str(files["receipts"]), "--logs-output", str(files["logs"])),
    )
    return {name: sorted(_read_csv(file), key=repr) for name, file in files.items()}


def _run_etl(*arguments: str) -> None:
    done = subprocess.run([ETL, *arguments], capture_output=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.decode()[-300:])


def _read_csv(file: Path) -> list[Any]:
    csv.field_size_limit(sys.maxsize)
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def judge(run: Callable[[str, Path], Rows], url: str, into: Path, right: Rows) -> str:
    try:
        rows = run(url, into)
    except (RuntimeError, subprocess.TimeoutExpired):
        return REFUSED
    if any(rows[table] != right[table] for table in rows):
        return WRONG
    return RIGHT if rows.keys() == right.keys() else INCOMPLETE


@pytest.mark.skipif("TRACE_TEST_PEERS" not in os.environ, reason="run it with `make test-liars`")
def test_which_tool_writes_wrong_rows(node: LyingNode, tmp_path: Path) -> None:
    tools = {"cryo": run_cryo, "ethereum-etl": run_ethereum_etl}
    right = {name: run(node.url("honest"), tmp_path / name) for name, run in tools.items()}
    assert all(len(rows["logs"]) > 20 for rows in right.values())
    found = {
        (lie, tool): judge(run, node.url(lie), tmp_path / f"{tool}-{lie}", right[tool])
        for lie in FAULTS
        for tool, run in tools.items()
    }
    print("\n| what the provider does | cryo | ethereum-etl |\n| --- | --- | --- |")
    for lie in FAULTS:
        print(f"| {lie.replace('_', ' ')} | {found[lie, 'cryo']} | {found[lie, 'ethereum-etl']} |")
    # The lies are real: tools that verify nothing write them.
    assert (
        found["logs_dropped", "cryo"] == WRONG and found["value_changed", "ethereum-etl"] == WRONG
    )
