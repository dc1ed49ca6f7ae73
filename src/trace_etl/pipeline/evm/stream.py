"""`spark.readStream.format("evm")`: micro-batches that follow the tip, reorganisations included.

An offset is `{number, hash}` of the last block, the first block of its batch, and the hashes of
the blocks before it. It holds all there is to know: a query that starts again from its checkpoint
finds a reorganisation that happened meanwhile. When the chain changes, the next batch begins at the
first block that changed: a batch replaces whatever its reader holds from its lowest block on.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from trace_etl.pipeline.evm.options import EvmOptions
from trace_etl.pipeline.evm.reading import BlockRange, read_range
from trace_etl.pipeline.evm.tip import TipReader
from trace_etl.pipeline.evm.trail import Mark, Trail
from trace_etl.plan.ranges import split

_EVERYTHING = 1_000_000
Offset = dict[str, Any]


class EvmStreamReader(DataSourceStreamReader):
    """Plans on the driver, reads on executors. `reorg_depth` hashes are kept in every offset."""

    def __init__(self, options: EvmOptions) -> None:
        self._options = options

    def initialOffset(self) -> Offset:
        start = self._options.start
        return {"number": start - 1, "hash": "", "first": start, "trail": ""}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.blocks_per_batch)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else _EVERYTHING
        trail = _trail(start)
        with TipReader(self._options.source, ("blocks",)) as reader:
            # The first hash of a full trail is the last that may be relied on.
            is_full = len(trail) > self._options.reorg_depth
            final = trail.first if is_full else -1
            found = reader.advance(trail, start=self._options.start, final=final, limit=most)
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


def _trail(offset: Offset) -> Trail:
    hashes = bytes.fromhex(offset["trail"])
    marks = [hashes[at : at + 32] for at in range(0, len(hashes), 32)]
    first = offset["number"] - len(marks) + 1
    return Trail(Mark(first + at, one) for at, one in enumerate(marks))


def _offset(first: int, trail: Trail) -> Offset:
    last = trail.last
    assert last is not None
    hashes = "".join(mark.hash.hex() for mark in trail)
    return {"number": last.number, "hash": f"0x{last.hash.hex()}", "first": first, "trail": hashes}
