"""Does a node's answer agree with itself? A provider that lags or lies is caught here."""

from collections.abc import Sequence
from typing import Any

from trace_etl.pipeline.errors import ChainMismatch

_Json = dict[str, Any]
_NO_LOGS = "0x" + "00" * 256


def check_numbers(blocks: Sequence[_Json], numbers: range) -> None:
    """Every block is the one that was asked for. Raises ChainMismatch."""
    for number, block in zip(numbers, blocks, strict=True):
        if int(block["number"], 16) != number:
            raise ChainMismatch(
                f"eth_getBlockByNumber of block {number} answered with block {block['number']}"
            )


def check_links(blocks: Sequence[_Json], parent: str | None) -> None:
    """Every block names the one before it as its parent. Raises ChainMismatch."""
    for block in blocks:
        if parent is not None and block["parentHash"] != parent:
            number = int(block["number"], 16)
            raise ChainMismatch(
                f"block {number} has parent {block['parentHash']}, "
                f"but block {number - 1} is {parent}: the chain changed while we read it"
            )
        parent = block["hash"]


def check_receipts(blocks: Sequence[_Json], receipts: Sequence[Sequence[_Json]]) -> None:
    """One receipt per transaction, in order, of this block; and so its logs."""
    for block, answers in zip(blocks, receipts, strict=True):
        block_hash, rows = block["hash"], block["transactions"]
        if len(rows) != len(answers):
            raise _mismatch(block, f"{len(rows)} transactions but {len(answers)} receipts")
        for row, receipt in zip(rows, answers, strict=True):
            if receipt["transactionHash"] != row["hash"] or receipt["blockHash"] != block_hash:
                raise _mismatch(block, f"a receipt that is not of transaction {row['hash']}")
            for log in receipt["logs"]:
                if log["blockHash"] != block_hash or log["blockNumber"] != block["number"]:
                    raise _mismatch(block, f"a log of another block ({log['blockHash']})")


def check_logs(blocks: Sequence[_Json], logs: Sequence[_Json]) -> None:
    """Logs fetched by range belong to these blocks, and none of them is left out whole."""
    hashes = {block["number"]: block["hash"] for block in blocks}
    told: set[str] = set()
    for log in logs:
        if hashes.get(log["blockNumber"]) != log["blockHash"]:
            raise ChainMismatch(
                f"eth_getLogs told a log of block {int(log['blockNumber'], 16)} "
                f"({log['blockHash']}), which is not the block we read"
            )
        told.add(log["blockNumber"])
    for block in blocks:
        if block["number"] not in told and block.get("logsBloom", _NO_LOGS) != _NO_LOGS:
            raise _mismatch(block, "a bloom filter with logs in it, but eth_getLogs told none")


def _mismatch(block: _Json, what: str) -> ChainMismatch:
    return ChainMismatch(f"block {int(block['number'], 16)} ({block['hash']}) has {what}")
