"""Check that a node's answers agree with each other. Detects a node that lags or is wrong."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trace_etl.spark.errors import ChainMismatch
from trace_etl.spark.evm.columns import repeat_values

_Array = Any  # pyarrow ships no types
_NO_LOGS = "0x" + "00" * 256
_POSITIONS: list[str] = []


def check_numbers(blocks: _Array, numbers: range) -> None:
    """Check that each block is the requested one and is sealed. Raises ChainMismatch."""
    actual = blocks.field("number")
    index = _find_difference(actual, pa.array([hex(number) for number in numbers], pa.string()))
    if index is not None:
        raise ChainMismatch(
            f"eth_getBlockByNumber of block {numbers[index]} answered with block {actual[index]}"
        )
    for name in ("hash", "parentHash"):
        absent = np.flatnonzero(np.asarray(blocks.field(name).is_null()))
        if len(absent):
            raise ChainMismatch(f"block {numbers[int(absent[0])]} has no {name}: it is pending")


def check_links(blocks: _Array, parent: str | None, endpoint: str = "") -> None:
    """Check that each block's parent is the block before it. Raises ChainMismatch."""
    hashes, parents = blocks.field("hash"), blocks.field("parentHash")
    first = parents[0].as_py() if parent is None else parent
    before = pa.concat_arrays([pa.array([first], pa.string()), hashes[:-1]])
    index = _find_difference(parents, before)
    if index is not None:
        number = _read_block_number(blocks, index)
        raise ChainMismatch(
            f"block {number} has parent {parents[index]}, but block {number - 1} is {before[index]}: "
            f"the chain changed during the read from {endpoint or 'the node'}; try again"
        )


def check_transactions(blocks: _Array, transactions: _Array, counts: Any) -> None:
    """Check that the transactions belong to their blocks, in order. Raises ChainMismatch."""
    expected = (
        ("blockHash", repeat_values(blocks.field("hash"), counts)),
        ("blockNumber", repeat_values(blocks.field("number"), counts)),
        ("transactionIndex", _number_rows(counts)),
    )
    _compare_rows(blocks, transactions, "hash", expected, counts)


def check_receipts(
    blocks: _Array, hashes: _Array, expected_counts: Any, receipts: _Array, counts: Any
) -> None:
    """Check that each transaction has its receipt, in order. Raises ChainMismatch."""
    unequal = np.flatnonzero(expected_counts != counts)
    if len(unequal):
        index = int(unequal[0])
        raise _make_error(
            blocks, index, f"{expected_counts[index]} transactions but {counts[index]} receipts"
        )
    of_blocks = repeat_values(blocks.field("hash"), counts)
    for expected, name in ((hashes, "transactionHash"), (of_blocks, "blockHash")):
        index = _find_difference(expected, receipts.field(name))
        if index is not None:
            problem = f"a receipt that is not of transaction {hashes[index]}"
            raise _make_error(blocks, _find_block(counts, index), problem)
    expected = (("transactionIndex", _number_rows(counts)),)
    _compare_rows(blocks, receipts, "transactionHash", expected, counts)


def check_uncles(blocks: _Array, hashes: _Array, uncles: _Array, counts: Any) -> None:
    """Check that the uncles are the ones that the blocks name. Raises ChainMismatch."""
    index = _find_difference(hashes, uncles.field("hash"))
    if index is not None:
        raise _make_error(
            blocks, _find_block(counts, index), f"an uncle that is not {hashes[index]}"
        )


def _number_rows(counts: Any) -> _Array:
    """The position of each row in its block, as JSON-RPC writes it."""
    counts = np.asarray(counts)
    most = int(counts.max(initial=0))
    while len(_POSITIONS) < most:
        _POSITIONS.append(hex(len(_POSITIONS)))
    positions = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return pa.array(_POSITIONS[:most], pa.string()).take(pa.array(positions))


def _compare_rows(
    blocks: _Array, rows: _Array, key: str, expected: Iterable[tuple[str, _Array]], counts: Any
) -> None:
    for name, values in expected:
        index = _find_difference(values, rows.field(name))
        if index is not None:
            problem = (
                f"{name} {rows.field(name)[index]} at transaction {rows.field(key)[index]}; "
                f"expected {values[index]}"
            )
            raise _make_error(blocks, _find_block(counts, index), problem)


def check_logs(blocks: _Array, logs: _Array, counts: Any) -> None:
    """Check that the logs, `counts` per block, belong to these blocks. Raises ChainMismatch."""
    for expected, name in (("hash", "blockHash"), ("number", "blockNumber")):
        index = _find_difference(repeat_values(blocks.field(expected), counts), logs.field(name))
        if index is not None:
            problem = f"a log of another block ({logs.field('blockHash')[index]})"
            raise _make_error(blocks, _find_block(counts, index), problem)


def check_traces(blocks: _Array, traces: _Array, counts: Any) -> None:
    """Check that the traces belong to these blocks and cover each transaction. Raises
    ChainMismatch.
    """
    index = _find_difference(repeat_values(blocks.field("hash"), counts), traces.field("blockHash"))
    if index is not None:
        problem = f"a trace of another block ({traces.field('blockHash')[index]})"
        raise _make_error(blocks, _find_block(counts, index), problem)
    depths = np.diff(np.asarray(traces.field("traceAddress").offsets))
    is_root = (depths == 0) & np.asarray(traces.field("transactionPosition").is_valid())
    owners = np.repeat(np.arange(len(blocks)), counts)
    roots = np.bincount(owners[is_root], minlength=len(blocks))
    expected_counts = np.diff(np.asarray(blocks.field("transactions").offsets))
    unequal = np.flatnonzero(roots != expected_counts)
    if len(unequal):
        index = int(unequal[0])
        raise _make_error(
            blocks, index, f"{expected_counts[index]} transactions but traces of {roots[index]}"
        )


def check_empty_blooms(blocks: _Array, counts: Any) -> None:
    """Check that blocks without logs have an empty bloom filter. Raises ChainMismatch."""
    without_logs = np.flatnonzero(counts == 0)
    blooms = pc.fill_null(blocks.field("logsBloom").take(pa.array(without_logs)), _NO_LOGS)
    index = _find_difference(blooms, pa.array([_NO_LOGS] * len(without_logs), pa.string()))
    if index is not None:
        problem = "a bloom filter with logs, but eth_getLogs returned none"
        raise _make_error(blocks, int(without_logs[index]), problem)


def _find_difference(left: _Array, right: _Array) -> int | None:
    if left.equals(right):
        return None
    differs = pc.fill_null(pc.not_equal(left, right), True)
    positions = np.flatnonzero(np.asarray(differs))
    return int(positions[0]) if len(positions) else None


def _find_block(counts: Any, row: int) -> int:
    """Return the index of the block that a row belongs to."""
    return int(np.searchsorted(np.cumsum(counts), row, side="right"))


def _read_block_number(blocks: _Array, index: int) -> int:
    return int(blocks.field("number")[index].as_py(), 16)


def _make_error(blocks: _Array, index: int, problem: str) -> ChainMismatch:
    block_hash = blocks.field("hash")[index]
    return ChainMismatch(f"block {_read_block_number(blocks, index)} ({block_hash}) has {problem}")
