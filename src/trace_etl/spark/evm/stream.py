"""`spark.readStream.format("evm")`: micro-batches that follow the tip and its reorganisations.

An offset holds the number and hash of the last block, the first block of its batch, and the hashes
of the blocks before it. The reader has no other state: a query that restarts from its checkpoint detects a
reorganisation that happened while it was stopped. After a reorganisation the next batch begins at the first
block that changed: a batch replaces everything its reader holds from its lowest block on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from trace_etl.policy.ranges import split_range
from trace_etl.spark.errors import ChainMismatch, report_errors
from trace_etl.spark.evm.options import EvmOptions
from trace_etl.spark.evm.reading import BlockRange, read_range
from trace_etl.spark.evm.recent_blocks import BlockRef, RecentBlocks
from trace_etl.spark.evm.rpc.set_aside import SET_ASIDE
from trace_etl.spark.evm.tip import TipReader

_NO_LIMIT = 1_000_000
_MAX_CHANGES = 5
_MAX_COMPARED = 1000
Offset = dict[str, Any]


def offset_at(recent: RecentBlocks) -> Offset:
    """The offset of a stream that has read exactly these blocks."""
    assert recent.last is not None
    return _make_offset(recent.last.number + 1, recent)


class EvmStreamReader(DataSourceStreamReader):
    """Plans on the driver, reads on executors. Every offset keeps `reorg_depth` hashes."""

    def __init__(self, options: EvmOptions) -> None:
        # Endpoints differ at the tip, so ask one after another, not concurrently.
        self._options = replace(options, source=replace(options.source, spread=False))
        self._tip: TipReader | None = None
        self._changes = 0
        """Consecutive calls during which the chain changed."""

    def initialOffset(self) -> Offset:
        if self._options.starting_offset is not None:
            return dict(self._options.starting_offset)
        start = self._options.start
        return {"number": start - 1, "hash": "", "first": start, "trail": ""}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.blocks_per_batch)

    @report_errors
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        max_blocks = limit.max_rows if isinstance(limit, ReadMaxRows) else _NO_LIMIT
        recent = _parse_offset(start)
        # The oldest hash of a full window counts as final: older hashes are unknown.
        is_full = len(recent) > self._options.reorg_depth
        final = recent.first if is_full else -1
        tip, begin = self._open_tip(), self._options.start
        try:
            tip.compare_endpoints(
                recent, start=begin, final=final, limit=min(max_blocks, _MAX_COMPARED)
            )
            advance = tip.advance(recent, start=begin, final=final, limit=max_blocks)
        except ChainMismatch:
            self._changes += 1
            if self._changes > _MAX_CHANGES:
                raise
            return start  # report nothing new: a failed query would take seconds to restart
        self._changes = 0
        if advance is None:
            return start
        keep_from = advance.blocks[-1].number - self._options.reorg_depth
        return _make_offset(advance.first, recent.replace_from(advance.blocks, keep_from=keep_from))

    def partitions(self, start: Offset, end: Offset) -> Sequence[BlockRange]:
        if start == end:
            return []
        cuts = split_range(end["first"], end["number"], self._options.partition_size)
        # Executors do not know which endpoints this process has set aside.
        urls = SET_ASIDE.order(self._options.source.urls)
        return [BlockRange(first, last, urls) for first, last in cuts]

    @report_errors
    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Read by number. If a block changed after the offset was made, the rows are newer than the
        # offset; the next batch detects the difference and replaces the range again.
        yield from read_range(self._options, partition)

    def stop(self) -> None:
        if self._tip is not None:
            self._tip.__exit__()

    def _open_tip(self) -> TipReader:
        """Open the reader once, to reuse its connections."""
        if self._tip is None:
            self._tip = TipReader(self._options.source, ("blocks",), self._options.rules)
        return self._tip


def _parse_offset(offset: Mapping[str, Any]) -> RecentBlocks:
    content = bytes.fromhex(offset["trail"])
    hashes = [content[at : at + 32] for at in range(0, len(content), 32)]
    first = offset["number"] - len(hashes) + 1
    return RecentBlocks(BlockRef(first + at, block_hash) for at, block_hash in enumerate(hashes))


def _make_offset(first: int, recent: RecentBlocks) -> Offset:
    last = recent.last
    assert last is not None
    hashes = "".join(block.hash.hex() for block in recent)
    return {"number": last.number, "hash": f"0x{last.hash.hex()}", "first": first, "trail": hashes}
