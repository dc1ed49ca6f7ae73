"""Create the tasks that a lost event or invalidation should have created."""

import time
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.state.db.pool import Conn, Pool, transaction
from trace_etl.state.invalidations import invalidation_routing
from trace_etl.state.routing import events, reconcile

_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class Reconciler:
    pool: Pool
    wake: WakeEvents
    grace: timedelta
    """Time for the outbox to route an event before the reconciler does."""
    batch_size: int
    _horizons: deque[tuple[float, str]] = field(default_factory=deque[tuple[float, str]])

    async def reconcile_once(self) -> int:
        """Compare one bounded slice of new partitions and events. One replica at a time holds the lock."""
        async with transaction(self.pool) as conn:
            if not await reconcile.try_lock(conn):
                return 0
            checked, created = await self._route_lost_events(conn)
            horizon = self._find_settled_horizon(await reconcile.read_horizon(conn))
            if horizon is not None:
                comparison = await reconcile.compare_partitions(
                    conn, horizon=horizon, limit=self.batch_size
                )
                checked += comparison.partitions
                created += comparison.tasks
            created += await self._route_lost_invalidations(conn)
        if created:
            _log.warning("missing_tasks_created", tasks=created)
            self.wake.outbox.set()
        return checked + created

    async def _route_lost_events(self, conn: Conn) -> tuple[int, int]:
        checked, lost = await reconcile.take_events(conn, grace=self.grace, limit=self.batch_size)
        return checked, len((await events.route(conn, lost)).task_ids) if lost else 0

    async def _route_lost_invalidations(self, conn: Conn) -> int:
        lost = await reconcile.list_unrouted_invalidations(
            conn, grace=self.grace, limit=self.batch_size
        )
        return len(await invalidation_routing.route(conn, lost)) if lost else 0

    def _find_settled_horizon(self, horizon: str) -> str | None:
        """Return the newest horizon older than the grace period."""
        now = time.monotonic()
        self._horizons.append((now, horizon))
        settled: str | None = None
        while self._horizons and now - self._horizons[0][0] >= self.grace.total_seconds():
            settled = self._horizons.popleft()[1]
        if settled is not None:
            self._horizons.appendleft((now - self.grace.total_seconds(), settled))
        return settled
