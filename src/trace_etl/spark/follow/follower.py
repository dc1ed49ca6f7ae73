"""Following a chain into hot tables: one transaction per batch, told afterwards, fenced always."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event as Signal
from typing import Any
from uuid import UUID

import structlog

from trace_etl.api.task.events import Event
from trace_etl.data import followers, hot_tables
from trace_etl.data.connection import Conn, transaction
from trace_etl.data.followers import Writer
from trace_etl.policy.retry import Backoff
from trace_etl.spark.errors import ChainMismatch, RpcRefused, RpcUnreachable
from trace_etl.spark.evm.recent_blocks import Mark, Trail
from trace_etl.spark.evm.tables import SCHEMAS, build
from trace_etl.spark.evm.tip import TipReader
from trace_etl.spark.follow.metrics import METRICS
from trace_etl.spark.link import Emit, never

_log = structlog.stdlib.get_logger()
TROUBLES = (ChainMismatch, RpcRefused, RpcUnreachable)
"""A chain that changes while it is read, or a node that is away: both pass."""
_LONGEST_PAUSE = 15.0


@dataclass(frozen=True)
class HotOutput:
    """One output: which of the chain's tables it holds, and where."""

    kind: str
    table: str
    dataset_uuid: UUID
    dataset_version: UUID


@dataclass(frozen=True)
class Plan:
    """What to follow, and how."""

    name: str
    """What metrics call it: DAG and job."""
    writer: Writer
    outputs: Sequence[HotOutput]
    start: int | None = None
    """The first block; None means the tip as it is when the stream is first followed."""
    batch: int = 100
    poll: float = 1.0
    finality_depth: int = 2048
    """Blocks behind the tip that count as final where the node does not say."""
    tell_every: float = 2.0
    """Seconds between events while it catches up: each of them may cause tasks downstream."""
    patience: float = 600.0
    """How long a node may be unusable before the attempt is given up."""


@dataclass(frozen=True)
class Batch:
    """What to write next: these blocks, in place of everything held from the first of them on."""

    marks: Sequence[Mark]
    rows: Mapping[str, Sequence[Any]]
    """Record batches of each kind of output."""
    orphaned: int = 0
    """How many blocks that we held are no longer part of the chain."""

    @property
    def first(self) -> int:
        return self.marks[0].number


@dataclass
class Follower:
    """One attempt at following. Everything it knows it reads from Postgres data first."""

    plan: Plan
    reader: TipReader
    conn: Conn
    emit: Emit
    stop: Signal
    is_held: Callable[[], bool] = never
    """Whether to announce nothing for now; blocks are written all the same."""
    trail: Trail = field(default_factory=Trail, init=False)
    """The blocks held that may still be replaced."""
    start: int = field(default=0, init=False)
    """The first block of a stream that holds none."""
    well_at: float = field(default_factory=time.monotonic, init=False)
    """When last there was nothing to do, or something was done."""
    _owes: bool = field(default=False, init=False)
    _final: int = field(default=-1, init=False)
    _chain_id: int = field(default=0, init=False)
    _told_at: float = field(default=float("-inf"), init=False)

    def run(self, turn: Callable[[], bool] | None = None) -> None:
        """Follow until told to stop, by steps or by somebody's turns.

        Raises StaleWriter, FinalityBroken, or what stays broken.
        """
        is_open, failures = False, 0
        turn = turn or self.step
        poll = self.plan.poll
        backoff = Backoff.of_seconds(poll, min(_LONGEST_PAUSE, 64 * poll))
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                if not is_open:
                    self.open()
                    is_open = True
                pause = 0.0 if turn() else poll
                failures = 0
            except TROUBLES as error:
                failures = failures + 1 if self.well_at < began else 1
                _log.warning("follower_waits", job=self.plan.name, error=str(error))
                if time.monotonic() - self.well_at > self.plan.patience:
                    raise
                pause = backoff.seconds(failures)
            self.stop.wait(pause)

    def open(self) -> None:
        """Take the stream over and tell what the attempt before could not."""
        plan = self.plan
        self._chain_id = self.reader.chain_id()
        with transaction(self.conn):
            for output in plan.outputs:
                hot_tables.ensure(self.conn, output.table, SCHEMAS[output.kind])
            standing = followers.take(self.conn, plan.writer, self._chain_id)
            marks = followers.trail(self.conn, plan.writer.stream)
        self.trail = Trail(Mark(*mark) for mark in marks)
        self._final = standing.finalized
        if standing.number is None:
            self.start = self.reader.head().number if plan.start is None else plan.start
        _log.info("follower_started", job=plan.name, block=standing.number)
        METRICS.begin(plan.name)
        self._announce()

    def step(self) -> bool:
        """Write the next blocks, if there are any. Whether there may be more at once."""
        head = self.reader.head()
        advance = self.reader.advance(
            self.trail, start=self.start, final=self._final, limit=self.plan.batch, head=head
        )
        if advance is None:
            self.rest(head)
            return False
        rows = {
            output.kind: [build(output.kind, chunk, self._chain_id) for chunk in advance.chunks]
            for output in self.plan.outputs
        }
        return self.write(Batch(advance.marks, rows, advance.orphaned), head)

    def rest(self, head: Mark) -> None:
        """There is nothing new: tell what was held back, if it may be told by now."""
        if self._owes:
            self._announce()
        self.measure(head)
        self.well_at = time.monotonic()

    def write(self, batch: Batch, head: Mark) -> bool:
        """Commit a batch and tell of it. Whether there may be more at once."""
        final = self._finality(batch)
        old = self.trail.last
        self._commit(batch, final)
        self.trail = self.trail.replaced(batch.marks, keep_from=final)
        self._final = max(self._final, final)
        self._log_batch(batch, old)
        is_behind = batch.marks[-1].number < head.number
        is_due = time.monotonic() - self._told_at >= self.plan.tell_every
        if not is_behind or batch.orphaned or is_due:
            self._announce()
        self.measure(head)
        self.well_at = time.monotonic()
        return is_behind

    def measure(self, head: Mark) -> None:
        """Show where we are, and where the tip is."""
        last = self.trail.last
        METRICS.at(self.plan.name, last.number if last else None, head.number)

    def _finality(self, batch: Batch) -> int:
        """Up to where nothing changes any more, of what is held after this batch."""
        told, last = self.reader.finalized(), batch.marks[-1].number
        if told is None or told.number > last:
            # Nothing to compare hashes with: only what lies deep counts as settled.
            return max(self._final, last - self.plan.finality_depth)
        held = self.trail.replaced(batch.marks, keep_from=0).at(told.number)
        # Another block than ours is final: ours is about to be replaced, and must be allowed to.
        return max(self._final, told.number) if held == told else self._final

    def _commit(self, batch: Batch, final: int) -> None:
        stream, old = self.plan.writer.stream, self.trail.last
        with transaction(self.conn):
            followers.fence(self.conn, self.plan.writer)
            for output in self.plan.outputs:
                if batch.orphaned:
                    hot_tables.delete_from(self.conn, output.table, batch.first)
                hot_tables.copy_in(self.conn, output.table, batch.rows[output.kind])
            marks = [(mark.number, mark.hash) for mark in batch.marks]
            followers.move(self.conn, stream, marks, finalized=final, depth=batch.orphaned)
            if batch.orphaned and old is not None:
                reason = f"reorganisation of {batch.orphaned} blocks at {batch.first}"
                followers.note_rewrite(self.conn, stream, batch.first, old.number, reason)

    def _announce(self) -> None:
        """Tell the Dispatcher how far we are, and of every rewrite, until it has heard it."""
        self._owes = self.is_held()
        if self._owes:
            return
        with transaction(self.conn):
            standing = followers.read(self.conn, self.plan.writer.stream)
            rewrites = followers.pending_rewrites(self.conn, self.plan.writer.stream)
        assert standing is not None
        if standing.number is None or (standing.announced == standing.number and not rewrites):
            return
        self.emit(
            [_event(output, standing.number) for output in self.plan.outputs],
            [_invalidation(output, one) for one in rewrites for output in self.plan.outputs],
        )
        self._told_at = time.monotonic()
        with transaction(self.conn):
            followers.announced(self.conn, self.plan.writer, standing.number, rewrites)

    def _log_batch(self, batch: Batch, old: Mark | None) -> None:
        if batch.orphaned:
            METRICS.reorganised(self.plan.name, batch.orphaned)
            _log.warning(
                "chain_reorganised",
                job=self.plan.name,
                depth=batch.orphaned,
                first=batch.first,
                old=str(old),
            )
        last = batch.marks[-1].number
        _log.debug("blocks_written", job=self.plan.name, first=batch.first, last=last)


def _event(output: HotOutput, cursor: int) -> Event:
    return Event(
        dataset_uuid=output.dataset_uuid, dataset_version=output.dataset_version, cursor=cursor
    )


def _invalidation(output: HotOutput, rewrite: followers.Rewrite) -> dict[str, object]:
    return {
        "dataset_uuid": str(output.dataset_uuid),
        "dataset_version": str(output.dataset_version),
        "kind": "row_range",
        "start": rewrite.range_start,
        "end": rewrite.range_end,
        "reason": rewrite.reason,
        "key": f"rewrite-{rewrite.rewrite_id}-{output.kind}",  # told twice, it counts once
    }
