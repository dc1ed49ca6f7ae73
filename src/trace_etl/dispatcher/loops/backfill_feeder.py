"""Keeps running backfills supplied with tasks, a few at a time, and sees how they end."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import structlog

from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.state.db.pool import Conn, Pool, transaction
from trace_etl.state.flow import backfill_steps as steps
from trace_etl.state.flow.backfill_steps import Running

_log = structlog.stdlib.get_logger()
_BUSY = timedelta(seconds=0.5)


@dataclass(frozen=True)
class BackfillFeeder:
    pool: Pool
    wake: WakeEvents
    window: int
    """Tasks of one backfill that wait or run at once: more would only be in the way."""

    async def feed_once(self) -> int:
        """One step of every running backfill that no other replica is at."""
        after: UUID | None = UUID(int=0) if await self._any_running() else None
        while after is not None:
            after = await self._step(after)
        return 0

    async def next_due(self) -> timedelta | None:
        """While a backfill runs its tasks end without anybody telling."""
        return _BUSY if await self._any_running() else None

    async def _any_running(self) -> bool:
        async with self.pool.connection() as conn:
            return await steps.any_running(conn)

    async def _step(self, after: UUID) -> UUID | None:
        async with transaction(self.pool) as conn:
            running = await steps.lock_next(conn, after)
            if running is None:
                return None
            created = await self._feed(conn, running)
            ended = await steps.finish(conn, running.backfill_id)
        if created:
            self.wake.outbox.set()
        if ended:
            _log.info("backfill_ended", backfill_id=str(running.backfill_id), state=ended)
        return running.backfill_id

    async def _feed(self, conn: Conn, running: Running) -> int:
        if not running.is_current:
            await steps.cancel(conn, running.backfill_id, "the job was redeployed")
            return 0
        settled = await steps.settle(conn, running.backfill_id)
        room = self._window(running) - running.created + settled
        if running.is_paused or room <= 0:
            return 0
        make = steps.emit if running.is_source else steps.create_tasks
        return await make(conn, running.backfill_id, limit=room)

    def _window(self, running: Running) -> int:
        # A backfill must not be what makes its own job push back.
        limit = running.max_queue_depth
        return self.window if limit is None else min(self.window, max(1, limit // 2))
