"""End attempts whose lease expired, whose deadline passed or whose worker is gone. Record the cause."""

import time
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from trace_etl.dispatcher import metrics
from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.model.task import Cause
from trace_etl.policy.retry import Backoff, retry_delay
from trace_etl.queues.queue import QueueProducer, QueueUnavailable
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.tasks import leases
from trace_etl.state.tasks.leases import ExpiredAttempt

_log = structlog.stdlib.get_logger()


INTERVAL = 1.0  # seconds between passes
# A shorter gap looks like the time between two passes. A lease is extended every quarter of its
# length, so only leases below 2 s can expire in such a gap. The attempt then runs again; no rows are lost.
_TOLERANCE = timedelta(seconds=1.5 * INTERVAL)
# A worker is gone after this time without a connection to its queue: a broken connection is replaced sooner.
_GONE_AFTER = 4.0


@dataclass(frozen=True)
class LeaseReaper:
    pool: Pool
    queue: QueueProducer
    wake: WakeEvents
    retry: Backoff
    batch_size: int
    grace: timedelta
    """Time for heartbeats after an outage before a lease may expire."""
    gone_after: float = _GONE_AFTER
    lost_since: dict[str, float] = field(default_factory=dict[str, float])
    """Workers that are disconnected from their queues, and since when."""

    async def reap_once(self) -> int:
        """Fail one bounded batch of attempts whose lease expired or whose worker is gone.

        Safe on every replica at once. An outage, in which no Dispatcher could record heartbeats,
        extends all leases.
        """
        gone = await self._find_gone_workers()
        async with transaction(self.pool) as conn:
            outage = await leases.extend_by_outage(conn, tolerance=_TOLERANCE, grace=self.grace)
            if outage is not None:
                gone = self._restart_waiting()  # workers may have been unable to connect, too
            expired = await leases.lock_expired(conn, limit=self.batch_size, gone=gone)
            causes = [(task, self._find_cause(task)) for task in expired]
            for task, cause in causes:
                await leases.reap(
                    conn,
                    task,
                    cause=cause,
                    message=_make_message(task, cause),
                    retry_after=self._choose_delay(task, cause),
                )
        if outage is not None and outage[1]:
            seconds = round(outage[0].total_seconds(), 1)
            _log.warning("leases_extended_by_outage", outage_seconds=seconds, leases=outage[1])
        for task, cause in causes:
            metrics.REAPS.labels(cause.value).inc()
            metrics.count_transitions(["Canceled" if task.cancel_requested else "Failed"])
            # The next attempt may be due now, long before the scheduler's next poll.
            self.wake.retries.set()
            _log.warning(
                "attempt_reaped", task_id=str(task.task_id), attempt=task.attempt, cause=cause
            )
        return len(expired)

    async def next_due(self) -> timedelta | None:
        """Time until the next lease or deadline expires."""
        async with self.pool.connection() as conn:
            return await leases.next_expiry(conn)

    def _find_cause(self, task: ExpiredAttempt) -> Cause:
        if task.past_deadline:
            return Cause.HARD_TIMEOUT
        # The lease may be shorter than the time after which a worker counts as gone.
        return Cause.WORKER_GONE if task.worker_id in self.lost_since else Cause.LEASE_EXPIRED

    def _choose_delay(self, task: ExpiredAttempt, cause: Cause) -> timedelta | None:
        """Retry at once after the first loss of a worker. The task itself may be what kills workers."""
        if cause == Cause.WORKER_GONE and task.attempt == 1:
            return timedelta(0)
        return retry_delay(task.attempt, self.retry, retryable=True)

    async def _find_gone_workers(self) -> set[str]:
        """List the workers that have been disconnected from their queues for some time.

        A worker that only uses HTTP never connects to a queue, so it is never in the list.
        """
        try:
            lost = await self.queue.lost_consumers()
        except QueueUnavailable as error:
            _log.warning("queue_unavailable", error=repr(error))
            return self._restart_waiting()
        now = time.monotonic()
        since = {worker: self.lost_since.get(worker, now) for worker in lost or ()}
        self.lost_since.clear()
        self.lost_since.update(since)
        return {worker for worker, moment in since.items() if now - moment >= self.gone_after}

    def _restart_waiting(self) -> set[str]:
        """Give the workers the grace of an outage to connect again."""
        later = time.monotonic() + self.grace.total_seconds()
        self.lost_since.update(dict.fromkeys(self.lost_since, later))
        return set()


def _make_message(task: ExpiredAttempt, cause: Cause) -> str:
    if cause == Cause.HARD_TIMEOUT:
        return "the attempt ran longer than the job's timeout"
    if cause == Cause.WORKER_GONE:
        return f"worker {task.worker_id} disconnected from its queue and did not return"
    return f"worker {task.worker_id} sent no heartbeat before its lease expired"
