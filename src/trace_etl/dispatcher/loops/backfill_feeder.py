"""Create tasks of running backfills, a bounded window at a time, and record their results."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import structlog

from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.state.db.pool import Conn, Pool, transaction
from trace_etl.state.flow import backfill_steps as steps
from trace_etl.state.flow.backfill_steps import RunningBackfill

_log = structlog.stdlib.get_logger()
_POLL_INTERVAL = timedelta(seconds=0.5)


@dataclass(frozen=True)
class BackfillFeeder:
    pool: Pool
    wake: WakeEvents
    window: int
    """Queued and running tasks per backfill."""

    async def feed_once(self) -> int:
        """Advance every running backfill that no other replica holds."""
        after: UUID | None = UUID(int=0) if await self._has_running() else None
        while after is not None:
            after = await self._advance(after)
        return 0

    async def next_due(self) -> timedelta | None:
        """Poll while a backfill runs, because no wake event is set when a task ends."""
        return _POLL_INTERVAL if await self._has_running() else None

    async def _has_running(self) -> bool:
        async with self.pool.connection() as conn:
            return await steps.has_running(conn)

    async def _advance(self, after: UUID) -> UUID | None:
        async with transaction(self.pool) as conn:
            running = await steps.lock_next(conn, after)
            if running is None:
                return None
            created = await self._feed_backfill(conn, running)
            ended = await steps.finish(conn, running.backfill_id)
        if created:
            self.wake.outbox.set()
        if ended:
            _log.info("backfill_ended", backfill_id=str(running.backfill_id), state=ended)
        return running.backfill_id

    async def _feed_backfill(self, conn: Conn, running: RunningBackfill) -> int:
        if not running.is_current:
            await steps.cancel(conn, running.backfill_id, "the job was redeployed")
            return 0
        settled = await steps.settle_chunks(conn, running.backfill_id)
        room = self._compute_window(running) - running.created + settled
        if running.is_paused or room <= 0:
            return 0
        make = steps.emit_chunks if running.is_source else steps.create_tasks
        return await make(conn, running.backfill_id, limit=room)

    def _compute_window(self, running: RunningBackfill) -> int:
        # Stay below the job's own limit, so that a backfill does not cause backpressure itself.
        limit = running.max_queue_depth
        return self.window if limit is None else min(self.window, max(1, limit // 2))
