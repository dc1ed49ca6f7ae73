"""Follow a chain into hot tables: commit each batch in one fenced transaction, then announce it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event as Signal
from typing import Any
from uuid import UUID

import structlog

from trace_etl.api.task.events import MAX_BLOCK_TIME, ChainHead, Event
from trace_etl.dag.chain.tables import ColumnChoice
from trace_etl.data import followers, hot_tables
from trace_etl.data.connection import Conn, transaction
from trace_etl.data.followers import Writer
from trace_etl.policy.retry import Backoff
from trace_etl.spark.dispatcher_link import EmitEvents, ignore_head, never_paused
from trace_etl.spark.errors import ChainMismatch, RpcRefused, RpcUnreachable
from trace_etl.spark.evm.recent_blocks import BlockRef, RecentBlocks
from trace_etl.spark.evm.tables import build_table, make_schema
from trace_etl.spark.evm.tip import TipReader
from trace_etl.spark.follow.metrics import METRICS

_log = structlog.stdlib.get_logger()
TRANSIENT_ERRORS = (ChainMismatch, RpcRefused, RpcUnreachable)
"""Errors that usually pass: the chain changed during a read, or the node is unavailable."""
_MAX_PAUSE = 15.0


@dataclass(frozen=True)
class HotOutput:
    """One output: the kind of chain table, and the hot table that holds it."""

    kind: str
    table: str
    dataset_uuid: UUID
    dataset_version: UUID


@dataclass(frozen=True)
class FollowPlan:
    """Settings of one followed stream."""

    name: str
    """DAG and job, as a label for metrics."""
    writer: Writer
    outputs: Sequence[HotOutput]
    start: int | None = None
    """The first block. None: the tip at the time the stream first opens."""
    batch: int = 100
    poll: float = 1.0
    finality_depth: int = 2048
    """Blocks behind the tip that count as final when the node reports no finality."""
    announce_interval: float = 2.0
    """Minimum seconds between events during catch-up, because each may create tasks downstream."""
    report_interval: float = 5.0
    """Seconds between reports of the head."""
    timeout: float = 600.0
    """Seconds without a usable node after which the attempt fails."""
    columns: ColumnChoice = "standard"


@dataclass(frozen=True)
class BlockBatch:
    """The next blocks to write. They replace every held block from the first of them on."""

    blocks: Sequence[BlockRef]
    rows: Mapping[str, Sequence[Any]]
    """Record batches, by kind of output."""
    orphaned: int = 0
    """Number of held blocks that are no longer part of the chain."""

    @property
    def first(self) -> int:
        return self.blocks[0].number


@dataclass
class ChainFollower:
    """One attempt that follows a stream. `open` reads its state from Postgres data."""

    plan: FollowPlan
    reader: TipReader
    conn: Conn
    emit: EmitEvents
    stop: Signal
    is_paused: Callable[[], bool] = never_paused
    """Whether the job is paused: blocks are still written, but not announced."""
    report_head: Callable[[ChainHead], None] = ignore_head
    recent: RecentBlocks = field(default_factory=RecentBlocks, init=False)
    """The held blocks that the chain may still replace."""
    start: int = field(default=0, init=False)
    """The first block to read while the stream holds none."""
    healthy_at: float = field(default_factory=time.monotonic, init=False)
    """When the last step succeeded."""
    _has_unsent: bool = field(default=False, init=False)
    _finalized: int = field(default=-1, init=False)
    _chain_id: int = field(default=0, init=False)
    _announced_at: float = field(default=float("-inf"), init=False)
    _reported_at: float = field(default=float("-inf"), init=False)

    def run(self, step: Callable[[], bool] | None = None) -> None:
        """Open the stream and repeat `step` until `stop` is set; retry errors that usually pass.

        Raises StaleWriter, FinalityBroken, or the last error once `plan.timeout` has passed.
        """
        is_open, failures = False, 0
        step = step or self.step
        poll = self.plan.poll
        backoff = Backoff.of_seconds(poll, min(_MAX_PAUSE, 64 * poll))
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                if not is_open:
                    self.open()
                    is_open = True
                pause = 0.0 if step() else poll
                failures = 0
            except TRANSIENT_ERRORS as error:
                failures = failures + 1 if self.healthy_at < began else 1
                _log.warning("follower_waits", job=self.plan.name, error=str(error))
                if time.monotonic() - self.healthy_at > self.plan.timeout:
                    raise
                pause = backoff.seconds(failures)
            self.stop.wait(pause)

    def open(self) -> None:
        """Become the stream's writer and announce what the previous attempt did not."""
        plan = self.plan
        with transaction(self.conn):
            known = followers.read_position(self.conn, plan.writer.stream)
        self._chain_id = self.reader.chain_id(known.chain_id if known else None)
        with transaction(self.conn):
            for output in plan.outputs:
                schema = make_schema(output.kind, plan.columns)
                hot_tables.ensure_table(self.conn, output.table, schema)
            position = followers.take_over(self.conn, plan.writer, self._chain_id)
            blocks = followers.list_recent_blocks(self.conn, plan.writer.stream)
        self.recent = RecentBlocks(BlockRef(*block) for block in blocks)
        self._finalized = position.finalized
        if position.number is None:
            self.start = self.reader.find_start() if plan.start is None else plan.start
        _log.info("follower_started", job=plan.name, block=position.number)
        METRICS.register_job(plan.name)
        self._announce()

    def step(self) -> bool:
        """Write the next blocks, if any. Return whether more may be available immediately."""
        self.compare_endpoints()
        head = self.reader.head()
        advance = self.reader.advance(
            self.recent, start=self.start, final=self._finalized, limit=self.plan.batch, head=head
        )
        if advance is None:
            self._handle_no_new_blocks(head)
            return False
        rows = {
            output.kind: [
                build_table(output.kind, chunk, self._chain_id, self.plan.columns)
                for chunk in advance.chunks
            ]
            for output in self.plan.outputs
        }
        return self.write(BlockBatch(advance.blocks, rows, advance.orphaned), head)

    def compare_endpoints(self) -> None:
        """Set aside endpoints that lag behind others, or lie about their head."""
        self.reader.compare_endpoints(
            self.recent, start=self.start, final=self._finalized, limit=self.plan.batch
        )

    def write(self, batch: BlockBatch, head: BlockRef) -> bool:
        """Commit a batch and announce it. Return whether more blocks are available immediately."""
        final = self._find_final_block(batch)
        old = self.recent.last
        self._commit_batch(batch, final)
        self.recent = self.recent.replace_from(batch.blocks, keep_from=final)
        self._finalized = max(self._finalized, final)
        self._log_batch(batch, old)
        is_behind = batch.blocks[-1].number < head.number
        is_due = time.monotonic() - self._announced_at >= self.plan.announce_interval
        if not is_behind or batch.orphaned or is_due:
            self._announce()
        else:
            self._has_unsent = True  # sent later, even if the head is never reached
        self.record_position(head)
        self.healthy_at = time.monotonic()
        return is_behind

    def record_position(self, head: BlockRef) -> None:
        """Export the stream's last block and its lag behind the head, and report them now and then."""
        last = self.recent.last
        METRICS.record_position(self.plan.name, last.number if last else None, head.number)
        if head.time is None or time.monotonic() - self._reported_at < self.plan.report_interval:
            return
        # After a restart, the last block is known without its time until the next one is written.
        last_time = head.time if last == head else last and last.time
        self.report_head(
            ChainHead(
                head=head.number,
                head_time=min(head.time, MAX_BLOCK_TIME),
                position=last and last.number,
                position_time=None if last_time is None else min(last_time, MAX_BLOCK_TIME),
            )
        )
        self._reported_at = time.monotonic()

    def _handle_no_new_blocks(self, head: BlockRef) -> None:
        """Announce what was held back, and record the position."""
        if self._has_unsent:
            self._announce()
        self.record_position(head)
        self.healthy_at = time.monotonic()

    def _find_final_block(self, batch: BlockBatch) -> int:
        """The highest block number that is final once this batch is written."""
        node_final, last = self.reader.finalized(), batch.blocks[-1].number
        if node_final is None or node_final.number > last:
            # There is no hash to compare, so only blocks at the finality depth count as final.
            return max(self._finalized, last - self.plan.finality_depth)
        held = self.recent.replace_from(batch.blocks, keep_from=0).at(node_final.number)
        # If another block than the held one is final, the held one must remain replaceable.
        if held != node_final or node_final.number <= self._finalized:
            return self._finalized
        return max(self._finalized, self.reader.confirm_final(node_final.number))

    def _commit_batch(self, batch: BlockBatch, final: int) -> None:
        stream, old = self.plan.writer.stream, self.recent.last
        with transaction(self.conn):
            followers.lock_stream(self.conn, self.plan.writer)
            for output in self.plan.outputs:
                if batch.orphaned:
                    hot_tables.delete_from_block(self.conn, output.table, batch.first)
                hot_tables.copy_rows(self.conn, output.table, batch.rows[output.kind])
            blocks = [(block.number, block.hash) for block in batch.blocks]
            followers.move_position(
                self.conn, stream, blocks, finalized=final, depth=batch.orphaned
            )
            if batch.orphaned and old is not None:
                reason = f"reorganisation of {batch.orphaned} blocks at {batch.first}"
                followers.record_rewrite(self.conn, stream, batch.first, old.number, reason)

    def _announce(self) -> None:
        """Send the position and pending rewrites to the Dispatcher, then record them as sent."""
        self._has_unsent = self.is_paused()
        if self._has_unsent:
            return
        with transaction(self.conn):
            position = followers.read_position(self.conn, self.plan.writer.stream)
            rewrites = followers.list_pending_rewrites(self.conn, self.plan.writer.stream)
        assert position is not None
        if position.number is None or (position.announced == position.number and not rewrites):
            return
        cursor = position.number
        self.emit(
            [
                Event(dataset_uuid=o.dataset_uuid, dataset_version=o.dataset_version, cursor=cursor)
                for o in self.plan.outputs
            ],
            [
                _make_invalidation(output, rewrite)
                for rewrite in rewrites
                for output in self.plan.outputs
            ],
        )
        self._announced_at = time.monotonic()
        with transaction(self.conn):
            followers.record_announced(self.conn, self.plan.writer, position.number, rewrites)

    def _log_batch(self, batch: BlockBatch, old: BlockRef | None) -> None:
        if batch.orphaned:
            METRICS.record_reorganisation(self.plan.name, batch.orphaned)
            _log.warning(
                "chain_reorganised",
                job=self.plan.name,
                depth=batch.orphaned,
                first=batch.first,
                old=str(old),
            )
        last = batch.blocks[-1].number
        _log.debug("blocks_written", job=self.plan.name, first=batch.first, last=last)


def _make_invalidation(output: HotOutput, rewrite: followers.Rewrite) -> dict[str, object]:
    return {
        "dataset_uuid": str(output.dataset_uuid),
        "dataset_version": str(output.dataset_version),
        "kind": "row_range",
        "start": rewrite.range_start,
        "end": rewrite.range_end,
        "reason": rewrite.reason,
        "is_reorganisation": True,
        # The Dispatcher counts a repeated key once.
        "key": f"rewrite-{rewrite.rewrite_id}-{output.kind}",
    }
