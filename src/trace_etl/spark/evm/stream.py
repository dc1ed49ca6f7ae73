"""`spark.readStream.format("evm")`: micro-batches that follow the tip, reorganisations included.

An offset is `{number, hash}` of the last block, the first block of its batch, and the hashes of
the blocks before it. It holds all there is to know: a query that starts again from its checkpoint
finds a reorganisation that happened meanwhile. When the chain changes, the next batch begins at the
first block that changed: a batch replaces whatever its reader holds from its lowest block on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from trace_etl.policy.ranges import split
from trace_etl.spark.errors import ChainMismatch
from trace_etl.spark.evm.options import EvmOptions
from trace_etl.spark.evm.reading import BlockRange, read_range
from trace_etl.spark.evm.recent_blocks import Mark, Trail
from trace_etl.spark.evm.tip import TipReader

_EVERYTHING = 1_000_000
_MOST_CHANGES = 5
Offset = dict[str, Any]


def offset_at(trail: Trail) -> Offset:
    """Where a stream is that holds these blocks and has nothing left to read of them."""
    assert trail.last is not None
    return _offset(trail.last.number + 1, trail)


class EvmStreamReader(DataSourceStreamReader):
    """Plans on the driver, reads on executors. `reorg_depth` hashes are kept in every offset."""

    def __init__(self, options: EvmOptions) -> None:
        # At the tip endpoints differ: one is asked after another, not all at once.
        self._options = replace(options, source=replace(options.source, spread=False))
        self._tip: TipReader | None = None
        self._changes = 0
        """How often in a row the chain changed while it was looked at."""

    def initialOffset(self) -> Offset:
        if self._options.starting_offset is not None:
            return dict(self._options.starting_offset)
        start = self._options.start
        return {"number": start - 1, "hash": "", "first": start, "trail": ""}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.blocks_per_batch)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else _EVERYTHING
        trail = _trail(start)
        # The first hash of a full trail is the last that may be relied on.
        is_full = len(trail) > self._options.reorg_depth
        final = trail.first if is_full else -1
        try:
            found = self._reader().advance(
                trail, start=self._options.start, final=final, limit=most
            )
        except ChainMismatch:
            self._changes += 1
            if self._changes > _MOST_CHANGES:
                raise
            return start  # nothing for now: a query that failed would take seconds to come back
        self._changes = 0
        if found is None:
            return start
        kept = found.marks[-1].number - self._options.reorg_depth
        return _offset(found.first, trail.replaced(found.marks, keep_from=kept))

    def partitions(self, start: Offset, end: Offset) -> Sequence[BlockRange]:
        if start == end:
            return []
        cuts = split(end["first"], end["number"], self._options.partition_size)
        return [BlockRange(first, last) for first, last in cuts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # By number: should a block have changed since the offset was made, what we read is newer
        # than the offset, and the next batch finds the difference and replaces the range again.
        return read_range(self._options, partition)

    def stop(self) -> None:
        if self._tip is not None:
            self._tip.__exit__()

    def _reader(self) -> TipReader:
        """Kept from one offset to the next: its connections are open already."""
        if self._tip is None:
            self._tip = TipReader(self._options.source, ("blocks",))
        return self._tip


def _trail(offset: Mapping[str, Any]) -> Trail:
    hashes = bytes.fromhex(offset["trail"])
    marks = [hashes[at : at + 32] for at in range(0, len(hashes), 32)]
    first = offset["number"] - len(marks) + 1
    return Trail(Mark(first + at, one) for at, one in enumerate(marks))


def _offset(first: int, trail: Trail) -> Offset:
    last = trail.last
    assert last is not None
    hashes = "".join(mark.hash.hex() for mark in trail)
    return {"number": last.number, "hash": f"0x{last.hash.hex()}", "first": first, "trail": hashes}
