"""Keep one task of every `always_on` source running. Restart it after success and after failure."""

from dataclasses import dataclass
from datetime import timedelta

import structlog

from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.policy.retry import Backoff
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.routing import always_on

_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class SourceMonitor:
    pool: Pool
    wake: WakeEvents
    restart: Backoff
    window: timedelta
    """Time during which an ended attempt increases the next restart delay."""

    async def supervise_once(self) -> int:
        """Check every source once. Safe on every replica at once: one of them holds the lock."""
        async with transaction(self.pool) as conn:
            changes = await always_on.supervise(conn, self.restart, window=self.window)
        for event, tasks in vars(changes).items():
            for task_id in tasks:
                _log.info("source_supervised", action=event, task_id=str(task_id))
        if changes.started or changes.restarted:
            self.wake.outbox.set()
        return 0  # a second pass has nothing to do until a task ends or a delay passes
