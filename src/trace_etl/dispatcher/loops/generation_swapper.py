"""Swap a rollout's generations in one transaction when the new generations cover the old ones."""

import time
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.model.errors import Conflict
from trace_etl.state.db.pool import Pool, transact, transaction
from trace_etl.state.rollout import backfill_consumers, coverage, rollouts, swap
from trace_etl.state.rollout.rollouts import BuildingRollout

_log = structlog.stdlib.get_logger()
_PAUSE_FACTOR = 10  # pause ten times as long as a check took: large generations take long


@dataclass
class GenerationSwapper:
    pool: Pool
    wake: WakeEvents
    every: timedelta
    """Interval between checks while a generation is being built."""
    _pause: timedelta | None = field(default=None, init=False)
    _stuck: int = field(default=0, init=False)
    """Rollouts without tasks in progress at the last check. They are checked again after the idle interval."""

    async def swap_once(self) -> int:
        """Check every rollout once. Safe on every replica at once: only one of them swaps."""
        began = time.monotonic()
        self._stuck = 0
        async with self.pool.connection() as conn:
            building = await rollouts.list_building(conn)
        swapped = [await self._swap(rollout) for rollout in building]
        duration = timedelta(seconds=time.monotonic() - began)
        busy = swapped.count(False) - self._stuck
        self._pause = max(self.every, duration * _PAUSE_FACTOR) if busy > 0 else None
        return sum(swapped)

    async def next_due(self) -> timedelta | None:
        """Time until the next check. None: this replica knows of no generation being built."""
        return self._pause

    async def _swap(self, rollout: BuildingRollout) -> bool:
        snapshot = await self._read_coverage(rollout)
        if snapshot is None:
            return False
        try:
            moved = await transact(
                self.pool, lambda conn: swap.swap(conn, rollout, covered_as_of=snapshot)
            )
        except Conflict as error:
            # Another replica swapped, or new partitions must be covered first.
            _log.info("generations_not_swapped", dag=rollout.dag, reason=error.detail)
            return False
        await transact(
            self.pool,
            lambda conn: backfill_consumers.backfill_readers(conn, moved, only_recent=True),
        )
        self.wake.outbox.set()
        _log.info("generations_swapped", dag=rollout.dag, dag_version=str(rollout.dag_version))
        return True

    async def _read_coverage(self, rollout: BuildingRollout) -> str | None:
        """Return the snapshot in which coverage was complete, or None.

        Missing partitions that no task is going to build are requested again.
        """
        async with transaction(self.pool) as conn:
            building = await rollouts.list_building_revisions(conn, rollout.dag_id)
            requested = await backfill_consumers.emit_again(conn, building)
            snapshot = None
            if not requested:
                snapshot = await coverage.find_covered_snapshot(conn, rollout.rollout_id)
            if snapshot is None and (
                idle := await coverage.list_idle_revisions(conn, rollout.dag_id)
            ):
                requested += await backfill_consumers.backfill(conn, idle)
                self._stuck += not requested
        if requested:
            self.wake.outbox.set()
        return snapshot
