"""Does a node's answer agree with itself? A provider that lags or lies is caught here."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trace_etl.spark.errors import ChainMismatch
from trace_etl.spark.evm.columns import repeated

_Array = Any  # pyarrow ships no types
_NO_LOGS = "0x" + "00" * 256


def check_numbers(blocks: _Array, numbers: range) -> None:
    """Every block is the one that was asked for, and sealed. Raises ChainMismatch."""
    told = blocks.field("number")
    at = _first_difference(told, pa.array([hex(number) for number in numbers], pa.string()))
    if at is not None:
        raise ChainMismatch(
            f"eth_getBlockByNumber of block {numbers[at]} answered with block {told[at]}"
        )
    for name in ("hash", "parentHash"):
        absent = np.flatnonzero(np.asarray(blocks.field(name).is_null()))
        if len(absent):
            raise ChainMismatch(f"block {numbers[int(absent[0])]} has no {name}: it is not final")


def check_links(blocks: _Array, parent: str | None) -> None:
    """Every block names the one before it as its parent. Raises ChainMismatch."""
    hashes, parents = blocks.field("hash"), blocks.field("parentHash")
    first = parents[0].as_py() if parent is None else parent
    before = pa.concat_arrays([pa.array([first], pa.string()), hashes[:-1]])
    at = _first_difference(parents, before)
    if at is not None:
        number = _number(blocks, at)
        raise ChainMismatch(
            f"block {number} has parent {parents[at]}, but block {number - 1} is {before[at]}: "
            "the chain changed while we read it"
        )


def check_receipts(blocks: _Array, wanted: Any, receipts: _Array, counts: Any) -> None:
    """One receipt per transaction, in order, and of its block. Raises ChainMismatch."""
    unequal = np.flatnonzero(wanted != counts)
    if len(unequal):
        at = int(unequal[0])
        raise _mismatch(blocks, at, f"{wanted[at]} transactions but {counts[at]} receipts")
    hashes = blocks.field("transactions").flatten().field("hash")
    of_blocks = repeated(blocks.field("hash"), counts)
    for mine, theirs in ((hashes, "transactionHash"), (of_blocks, "blockHash")):
        at = _first_difference(mine, receipts.field(theirs))
        if at is not None:
            what = f"a receipt that is not of transaction {hashes[at]}"
            raise _mismatch(blocks, _owner(counts, at), what)


def check_logs(blocks: _Array, logs: _Array, counts: Any) -> None:
    """The logs, so many per block, are of these blocks. Raises ChainMismatch."""
    for mine, theirs in (("hash", "blockHash"), ("number", "blockNumber")):
        at = _first_difference(repeated(blocks.field(mine), counts), logs.field(theirs))
        if at is not None:
            what = f"a log of another block ({logs.field('blockHash')[at]})"
            raise _mismatch(blocks, _owner(counts, at), what)


def check_traces(blocks: _Array, traces: _Array, counts: Any) -> None:
    """The traces are of these blocks, and every transaction has its own. Raises ChainMismatch."""
    at = _first_difference(repeated(blocks.field("hash"), counts), traces.field("blockHash"))
    if at is not None:
        what = f"a trace of another block ({traces.field('blockHash')[at]})"
        raise _mismatch(blocks, _owner(counts, at), what)
    depths = np.diff(np.asarray(traces.field("traceAddress").offsets))
    is_root = (depths == 0) & np.asarray(traces.field("transactionPosition").is_valid())
    owners = np.repeat(np.arange(len(blocks)), counts)
    roots = np.bincount(owners[is_root], minlength=len(blocks))
    wanted = np.diff(np.asarray(blocks.field("transactions").offsets))
    unequal = np.flatnonzero(roots != wanted)
    if len(unequal):
        at = int(unequal[0])
        raise _mismatch(blocks, at, f"{wanted[at]} transactions but traces of {roots[at]}")


def check_silence(blocks: _Array, counts: Any) -> None:
    """Blocks without logs have nothing in their bloom filter. Raises ChainMismatch."""
    silent = np.flatnonzero(counts == 0)
    blooms = pc.fill_null(blocks.field("logsBloom").take(pa.array(silent)), _NO_LOGS)
    at = _first_difference(blooms, pa.array([_NO_LOGS] * len(silent), pa.string()))
    if at is not None:
        what = "a bloom filter with logs in it, but eth_getLogs told none"
        raise _mismatch(blocks, int(silent[at]), what)


def _first_difference(left: _Array, right: _Array) -> int | None:
    if left.equals(right):
        return None
    differs = pc.fill_null(pc.not_equal(left, right), True)
    found = np.flatnonzero(np.asarray(differs))
    return int(found[0]) if len(found) else None


def _owner(counts: Any, at: int) -> int:
    """The block that the row at that place belongs to."""
    return int(np.searchsorted(np.cumsum(counts), at, side="right"))


def _number(blocks: _Array, at: int) -> int:
    return int(blocks.field("number")[at].as_py(), 16)


def _mismatch(blocks: _Array, at: int, what: str) -> ChainMismatch:
    return ChainMismatch(f"block {_number(blocks, at)} ({blocks.field('hash')[at]}) has {what}")
