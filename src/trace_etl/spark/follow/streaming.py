"""Follow a chain with Structured Streaming: Spark plans and reads, the follower commits.

The position in Postgres data is the only state. Each query begins there with a new, temporary
checkpoint, so a batch that was logged but not committed is never replayed. Each batch is compared
with the committed blocks before it is written, whatever its query's offsets say. Spark therefore
need not wait for the commit: it reads the next batch meanwhile.
"""

import json
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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

from trace_etl.dag.chain.rules import VerifyRules
from trace_etl.spark.errors import ChainMismatch, FinalityBroken, OperatorError
from trace_etl.spark.evm.fetch import DEFAULT_RULES, RpcSource
from trace_etl.spark.evm.options import BUNDLE, LINKS
from trace_etl.spark.evm.reading import unpack_slice
from trace_etl.spark.evm.recent_blocks import BlockRef, LinkedBlock
from trace_etl.spark.evm.rpc.set_aside import SET_ASIDE
from trace_etl.spark.evm.stream import offset_at
from trace_etl.spark.follow.follower import TRANSIENT_ERRORS, BlockBatch, ChainFollower
from trace_etl.spark.output import attribute, find_output
from trace_etl.spark.session.failures import is_spark_lost, translate_error

_log = structlog.stdlib.get_logger()
_POLLING = "spark.sql.streaming.pollingDelay"
_POLL_SECONDS = 0.1  # how soon the end of a query is noticed
# Hashes per offset. Deeper reorganisations are resolved with the blocks in Postgres data.
_REORG_DEPTH = 128
_MAX_START_SECONDS = 60.0  # for the start of a query on a busy machine
_COMMITS_PER_READ = 2  # planning and logging a batch of Spark takes as long as committing one


@dataclass
class _QueryState:
    """The state of one query, shared with the thread that runs its batches."""

    committer: ThreadPoolExecutor
    error: Exception | None = None
    """Why a batch failed."""
    is_over: bool = False
    commit: Future[None] | None = None
    """The commit of the last batch that was read."""


@dataclass
class StreamingFollower:
    """Runs a follower's queries, one at a time. Spark delivers batches in a separate thread."""

    follower: ChainFollower
    spark: SparkSession
    source: RpcSource
    directory: Path
    """Parent of the queries' temporary checkpoints."""
    rules: VerifyRules = DEFAULT_RULES
    """What the executors verify."""
    check_interval: float = 2.0
    """Seconds between checks of the tip from this process, which detect a stalled query."""
    _lock: Lock = field(default_factory=Lock, init=False)

    def run(self) -> None:
        """Follow until stopped. Raises the errors of `ChainFollower.run`, or a Spark error."""
        self.follower.run(self.run_query)

    def run_query(self) -> bool:
        """Run one query until it ends. Return whether another may begin immediately."""
        with ThreadPoolExecutor(1, "follow-commit") as committer:
            state = _QueryState(committer)
            with self._open_query(state) as query:
                self._watch_query(query, state)
                error = state.error or query.exception()
        if self.follower.stop.is_set():
            return False
        if error is None:
            raise OperatorError(
                f"job {self.follower.plan.name}: the streaming query ended without an error; "
                "the next attempt starts a new one"
            )
        return self._handle_error(error)

    @contextmanager
    def _open_query(self, state: _QueryState) -> Generator[StreamingQuery]:
        with tempfile.TemporaryDirectory(prefix="follow-", dir=self.directory) as checkpoint:
            query = self._start_query(state, checkpoint)
            try:
                yield query
            finally:
                self._stop_query(query, state)

    def _stop_query(self, query: StreamingQuery, state: _QueryState) -> None:
        try:
            query.stop()
        finally:
            with self._lock:  # a batch in progress commits before this, or not at all
                state.is_over = True

    def _start_query(self, state: _QueryState, checkpoint: str) -> StreamingQuery:
        conf, poll, output = self.spark.conf, self.follower.plan.poll, find_output()

        def write_batch(frame: DataFrame, _: int) -> None:
            with attribute(output):  # all followers share the threads that Spark calls back
                self._process_batch(state, frame)

        default = conf.get(_POLLING)
        # A trigger interval would also delay batches during catch-up; the polling delay applies
        # only when there is no new data.
        conf.set(_POLLING, max(1, int(poll * 1000)))
        try:
            return (
                self._read_stream()
                .writeStream.foreachBatch(write_batch)
                .option("checkpointLocation", checkpoint)
                .start()
            )
        finally:
            conf.set(_POLLING, cast("str", default))

    def _read_stream(self) -> DataFrame:
        follower, source = self.follower, self.source
        tables = [LINKS, *(output.kind for output in follower.plan.outputs)]
        columns = follower.plan.columns
        reader = (
            self.spark.readStream.format("evm")
            # The planner and the executors are other processes, which learn on their own.
            .option("rpc_url", " ".join(SET_ASIDE.order(follower.reader.urls)))
            .option("dataset", BUNDLE)
            .option("tables", ",".join(tables))
            .option("start", follower.start)
            .option("batch", source.batch)
            .option("tries", source.tries)
            .option("compare_seconds", source.compare_seconds)
            .option("partition_size", source.batch)
            .option("blocks_per_batch", _COMMITS_PER_READ * follower.plan.batch)
            .option("reorg_depth", _REORG_DEPTH)
            .option("columns", columns if isinstance(columns, str) else ",".join(columns))
            .option("verify", self.rules.level)
            .option("exceptions", ",".join(self.rules.exceptions))
            .option("verify_senders", str(self.rules.senders).lower())
        )
        if follower.recent.last is not None:
            reader = reader.option("starting_offset", json.dumps(offset_at(follower.recent)))
        return reader.load()

    def _watch_query(self, query: StreamingQuery, state: _QueryState) -> None:
        """Wait until the query ends, a commit fails, or the follower must stop."""
        began = checked = time.monotonic()
        while query.isActive and not self.follower.stop.wait(_POLL_SECONDS):
            if state.error is not None:
                return
            if time.monotonic() - checked >= self.check_interval:
                self._check_tip(began)
                checked = time.monotonic()

    def _check_tip(self, began: float) -> None:
        """Update metrics and send pending events. Raises OperatorError if the query stalls."""
        follower = self.follower
        with self._lock:
            try:
                follower.compare_endpoints()
                head, last = follower.reader.head(), follower.recent.last
                if last is not None and head.number <= last.number:
                    # The chain may have changed and changed back: the query saw nothing new.
                    follower.step()
                else:
                    follower.record_position(head)
            except TRANSIENT_ERRORS as error:  # the query reports it, or stalls
                _log.warning("follower_check_failed", job=follower.plan.name, error=str(error))
        stalled = time.monotonic() - max(began, follower.healthy_at)
        if stalled > max(_MAX_START_SECONDS, follower.plan.timeout):
            raise OperatorError(
                f"job {follower.plan.name}: the streaming query made no progress for "
                f"{stalled:.0f} s; check the RPC endpoints"
            )

    def _handle_error(self, error: Exception) -> bool:
        """Recover from a query's error. Raises its cause if the follower cannot."""
        if isinstance(error, PySparkException) and not is_spark_lost(error):
            cause: Exception = translate_error(error, is_alive=True)
        else:
            cause = error
        if not isinstance(cause, FinalityBroken):
            raise cause
        # An offset holds fewer hashes than Postgres data: the follower may still find the fork.
        self.follower.step()
        return True

    def _process_batch(self, state: _QueryState, frame: DataFrame) -> None:
        """Read a batch in Spark's thread, and commit it while Spark reads the next one."""
        try:
            rows = self._collect_rows(frame)
            if state.commit is not None:
                state.commit.result()
            state.commit = state.committer.submit(self._commit_batch, state, rows)
        except Exception as error:
            state.error = error
            raise

    def _commit_batch(self, state: _QueryState, rows: Any) -> None:
        try:
            with self._lock:
                if not (state.is_over or state.error or self.follower.stop.is_set()):
                    self._commit_rows(rows)
        except Exception as error:
            state.error = error
            raise

    def _collect_rows(self, frame: DataFrame) -> Any:
        """Collect the batch; None if the chain changed during the read."""
        try:
            return frame.toArrow()
        except PySparkException as error:
            if isinstance(translate_error(error, is_alive=True), ChainMismatch):
                return None
            raise

    def _commit_rows(self, rows: Any) -> None:
        follower = self.follower
        links = _list_links(rows) if rows is not None else []
        new = follower.recent.select_new(links, start=follower.start) if links else None
        if new is None:
            # The chain changed between plan and read, or the batch does not fit the held blocks.
            self._catch_up(links[-1].block.number if links else 0)
        elif new:
            self._write_blocks(rows, new)

    def _catch_up(self, number: int) -> None:
        """Read from the fork point, without Spark, up to the last block of Spark's offset."""
        follower = self.follower
        while follower.step() and not follower.stop.is_set():
            if follower.recent.last and follower.recent.last.number >= number:
                return

    def _write_blocks(self, rows: Any, new: Sequence[LinkedBlock]) -> None:
        """Write new blocks, as many per commit as the job says; a reorganisation in one commit."""
        follower, head = self.follower, self.follower.reader.head()
        last = follower.recent.last
        orphaned = max(0, last.number - new[0].block.number + 1) if last else 0
        size = len(new) if orphaned else follower.plan.batch
        tables = {one.kind: _list_slices(rows, one.kind) for one in follower.plan.outputs}
        for at in range(0, len(new), size):
            blocks = [link.block for link in new[at : at + size]]
            chosen = {
                kind: [
                    _select_rows(batch, blocks[0].number, blocks[-1].number) for batch in batches
                ]
                for kind, batches in tables.items()
            }
            follower.write(BlockBatch(blocks, chosen, orphaned), head)


def _list_slices(rows: Any, table: str) -> list[Any]:
    """The record batches of a table, in chain order."""
    slices = rows.filter(pc.equal(rows.column("table"), table)).sort_by("first_block")
    return [unpack_slice(piece.as_py()) for piece in slices.column("slice")]


def _list_links(rows: Any) -> list[LinkedBlock]:
    table = pa.Table.from_batches(_list_slices(rows, LINKS))
    return [
        LinkedBlock(BlockRef(row["number"], row["hash"], row["time"]), row["parent"])
        for row in table.to_pylist()
    ]


def _select_rows(batch: Any, first: int, last: int) -> Any:
    """The rows of the blocks from `first` to `last`."""
    numbers = batch.column("block_number")
    if not len(numbers) or (first <= numbers[0].as_py() and numbers[-1].as_py() <= last):
        return batch
    chosen = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
    return batch.filter(chosen)
