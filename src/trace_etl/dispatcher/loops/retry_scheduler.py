"""Queue the next attempt of failed tasks whose retry is due."""

from dataclasses import dataclass
from datetime import timedelta

import structlog

from trace_etl.dispatcher import metrics
from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.tasks import leases

_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class RetryScheduler:
    pool: Pool
    wake: WakeEvents
    batch_size: int

    async def retry_once(self) -> int:
        """Queue one bounded batch of retries. Safe on every replica at once."""
        async with transaction(self.pool) as conn:
            started = await leases.start_next_attempts(conn, limit=self.batch_size)
        for task_id, attempt in started:
            _log.info("attempt_queued", task_id=str(task_id), attempt=attempt)
        if started:
            metrics.TRANSITIONS.labels("Queued").inc(len(started))
            self.wake.outbox.set()
        return len(started)

    async def next_due(self) -> timedelta | None:
        """Time until the next retry is due."""
        async with self.pool.connection() as conn:
            return await leases.next_retry(conn)
