"""Following a chain by Structured Streaming: Spark plans and reads, the follower commits.

The position in Postgres data is the only truth. A query begins there, with a checkpoint that
nobody reads again: what was logged and not committed is never replayed. Each batch is held against
the blocks that were committed, whatever its query believes.
"""

import json
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from trace_etl.spark.errors import ChainMismatch, FinalityBroken, PipelineError
from trace_etl.spark.evm.fetch import Source
from trace_etl.spark.evm.options import BUNDLE, LINKS
from trace_etl.spark.evm.reading import unpack
from trace_etl.spark.evm.recent_blocks import Link, Mark
from trace_etl.spark.evm.stream import offset_at
from trace_etl.spark.follow.follower import TROUBLES, Batch, Follower
from trace_etl.spark.session.failures import is_lost, translated

_log = structlog.stdlib.get_logger()
_POLLING = "spark.sql.streaming.pollingDelay"
_BEAT = 0.1  # how soon the end of a query is noticed
# Hashes in an offset. Whatever goes deeper, the trail in Postgres data knows.
_HASHES = 128
_LONGEST_START = 60.0  # of a query, on a machine that is busy


@dataclass
class _Life:
    """One query, from its start to its end."""

    error: Exception | None = None
    """Why a batch was not taken."""
    is_over: bool = False


@dataclass
class StreamingFollower:
    """Runs a follower's queries, one at a time. Batches come in a thread of their own."""

    follower: Follower
    spark: SparkSession
    source: Source
    directory: Path
    """Where checkpoints may lie while their query lives."""
    look: float = 2.0
    """Seconds between looks at the tip from here: they tell a query that stands still."""
    _lock: Lock = field(default_factory=Lock, init=False)

    def run(self) -> None:
        """Follow until told to stop. Raises what `Follower.run` does, and what ends Spark."""
        self.follower.run(self.turn)

    def turn(self) -> bool:
        """One query, as long as it goes well. Whether another may begin at once."""
        life = _Life()
        with self._query(life) as query:
            self._watch(query)
            error = life.error or query.exception()
        if self.follower.stop.is_set():
            return False
        if error is None:
            raise PipelineError("the streaming query ended without a reason")
        return self._settle(error)

    @contextmanager
    def _query(self, life: _Life) -> Generator[StreamingQuery]:
        with tempfile.TemporaryDirectory(prefix="follow-", dir=self.directory) as checkpoint:
            query = self._begin(life, checkpoint)
            try:
                yield query
            finally:
                self._end(query, life)

    def _end(self, query: StreamingQuery, life: _Life) -> None:
        try:
            query.stop()
        finally:
            with self._lock:  # a batch that outlived its JVM has committed by now, or never will
                life.is_over = True

    def _begin(self, life: _Life, checkpoint: str) -> StreamingQuery:
        conf, poll = self.spark.conf, self.follower.plan.poll
        usual = conf.get(_POLLING)
        # A trigger's interval would also slow down catching up; this is for when nothing is new.
        conf.set(_POLLING, max(1, int(poll * 1000)))
        try:
            return (
                self._frames()
                .writeStream.foreachBatch(lambda frame, _: self._take(life, frame))
                .option("checkpointLocation", checkpoint)
                .start()
            )
        finally:
            conf.set(_POLLING, cast("str", usual))

    def _frames(self) -> DataFrame:
        follower, source = self.follower, self.source
        tables = [LINKS, *(output.kind for output in follower.plan.outputs)]
        reader = (
            self.spark.readStream.format("evm")
            .option("rpc_url", " ".join(source.urls))
            .option("dataset", BUNDLE)
            .option("tables", ",".join(tables))
            .option("start", follower.start)
            .option("batch", source.batch)
            .option("tries", source.tries)
            .option("partition_size", source.batch)
            .option("blocks_per_batch", follower.plan.batch)
            .option("reorg_depth", _HASHES)
        )
        if follower.trail.last is not None:
            reader = reader.option("starting_offset", json.dumps(offset_at(follower.trail)))
        return reader.load()

    def _watch(self, query: StreamingQuery) -> None:
        """Wait until a query ends, or shall end."""
        began = looked = time.monotonic()
        while query.isActive and not self.follower.stop.wait(_BEAT):
            if time.monotonic() - looked >= self.look:
                self._look(began)
                looked = time.monotonic()

    def _look(self, began: float) -> None:
        """See to what is due when there is nothing new. Raises if the query stands still."""
        follower = self.follower
        with self._lock:
            try:
                head, last = follower.reader.head(), follower.trail.last
                if last is not None and head.number <= last.number:
                    # The chain may have changed for a batch and back: the query sees nothing new.
                    follower.step()
                else:
                    follower.measure(head)
            except TROUBLES as error:  # it is for the query to fail; or to stand still
                _log.warning("follower_looks_in_vain", job=follower.plan.name, error=str(error))
        still = time.monotonic() - max(began, follower.well_at)
        if still > max(_LONGEST_START, follower.plan.patience):
            raise PipelineError(f"the streaming query has not moved for {still:.0f} s")

    def _settle(self, error: Exception) -> bool:
        """What follows from a query's end. Raises the real cause of it, if it is not settled."""
        if isinstance(error, PySparkException) and not is_lost(error):
            cause: Exception = translated(error, is_alive=True)
        else:
            cause = error
        if not isinstance(cause, FinalityBroken):
            raise cause
        # The hashes in an offset end somewhere above the block that is final; ours do not.
        self.follower.step()
        return True

    def _take(self, life: _Life, frame: DataFrame) -> None:
        """Spark's thread: commit a batch."""
        try:
            rows = self._collect(frame)
            with self._lock:
                if not life.is_over and not self.follower.stop.is_set():
                    self._commit(rows)
        except Exception as error:
            life.error = error
            raise

    def _collect(self, frame: DataFrame) -> Any:
        """The batch, or None if the chain changed while it was read."""
        try:
            return frame.toArrow()
        except PySparkException as error:
            if isinstance(translated(error, is_alive=True), ChainMismatch):
                return None
            raise

    def _commit(self, rows: Any) -> None:
        follower = self.follower
        links = _links(rows) if rows is not None else []
        fresh = follower.trail.fresh(links, start=follower.start) if links else None
        if fresh is None:
            # The chain changed between plan and read, or goes on elsewhere than where we are.
            self._catch_up(links[-1].mark.number if links else 0)
        elif fresh:
            follower.write(self._batch(rows, fresh), follower.reader.head())

    def _catch_up(self, number: int) -> None:
        """Find the last common block and read from there, up to where Spark believes to be."""
        follower = self.follower
        while follower.step() and not follower.stop.is_set():
            if follower.trail.last and follower.trail.last.number >= number:
                return

    def _batch(self, rows: Any, fresh: Sequence[Link]) -> Batch:
        first, last = fresh[0].mark.number, self.follower.trail.last
        kept = {
            output.kind: [_from(first, one) for one in _slices(rows, output.kind)]
            for output in self.follower.plan.outputs
        }
        orphaned = max(0, last.number - first + 1) if last else 0
        return Batch([link.mark for link in fresh], kept, orphaned)


def _slices(rows: Any, table: str) -> list[Any]:
    """The record batches of a table, in the order of the chain."""
    mine = rows.filter(pc.equal(rows.column("table"), table)).sort_by("first_block")
    return [unpack(piece.as_py()) for piece in mine.column("slice")]


def _links(rows: Any) -> list[Link]:
    table = pa.Table.from_batches(_slices(rows, LINKS))
    return [Link(Mark(one["number"], one["hash"]), one["parent"]) for one in table.to_pylist()]


def _from(first: int, batch: Any) -> Any:
    """A batch's rows from a block on."""
    return batch.filter(pc.greater_equal(batch.column("block_number"), first))
