"""Keeps every `always_on` source running: one task each, started again whatever ended it."""

from dataclasses import dataclass
from datetime import timedelta

import structlog

from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.routing import always_on

_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class SourceMonitor:
    pool: Pool
    wake: WakeEvents
    first: timedelta
    most: timedelta
    window: timedelta
    """How long an attempt that ended counts against the next one."""

    async def supervise_once(self) -> int:
        """One look at all of them. Safe on every replica at once: one of them looks."""
        async with transaction(self.pool) as conn:
            done = await always_on.supervise(
                conn, first=self.first, most=self.most, window=self.window
            )
        for event, tasks in vars(done).items():
            for task_id in tasks:
                _log.info("source_supervised", action=event, task_id=str(task_id))
        if done.started or done.restarted:
            self.wake.outbox.set()
        return 0  # what else there is to do waits for somebody or some time
