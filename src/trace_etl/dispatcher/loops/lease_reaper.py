"""End attempts whose lease expired or whose deadline passed, and record the cause."""

from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from trace_etl.dispatcher import metrics
from trace_etl.model.task import Cause
from trace_etl.policy.retry import Backoff, retry_delay
from trace_etl.queues.queue import QueueProducer, QueueUnavailable
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.tasks import leases
from trace_etl.state.tasks.leases import ExpiredAttempt

_log = structlog.stdlib.get_logger()


INTERVAL = 1.0  # seconds between passes
# A shorter gap cannot be told from the time between two passes. A lease is extended every quarter of its
# length, so only leases below 2 s can expire in such a gap. The attempt then runs again; no rows are lost.
_TOLERANCE = timedelta(seconds=1.5 * INTERVAL)
_MAX_KNOWN_WORKERS = 10_000


@dataclass(frozen=True)
class LeaseReaper:
    pool: Pool
    queue: QueueProducer
    retry: Backoff
    batch_size: int
    grace: timedelta
    """Time for heartbeats after an outage before a lease may expire."""
    known_workers: set[str] = field(default_factory=set[str])
    """Workers that were connected to a queue in an earlier pass."""

    async def reap_once(self) -> int:
        """Fail one bounded batch of attempts whose lease expired. Safe on every replica at once.

        An outage, in which no Dispatcher could record heartbeats, extends all leases.
        """
        gone = await self._find_gone_workers()
        async with transaction(self.pool) as conn:
            outage = await leases.extend_by_outage(conn, tolerance=_TOLERANCE, grace=self.grace)
            expired = await leases.lock_expired(conn, limit=self.batch_size)
            causes = [(task, _find_cause(task, gone)) for task in expired]
            for task, cause in causes:
                await leases.reap(
                    conn,
                    task,
                    cause=cause,
                    message=_message(task, cause),
                    retry_after=retry_delay(task.attempt, self.retry, retryable=True),
                )
        if outage is not None and outage[1]:
            seconds = round(outage[0].total_seconds(), 1)
            _log.warning("leases_extended_by_outage", outage_seconds=seconds, leases=outage[1])
        for task, cause in causes:
            metrics.REAPS.labels(cause.value).inc()
            metrics.count_transitions(["Canceled" if task.cancel_requested else "Failed"])
            _log.warning(
                "attempt_reaped", task_id=str(task.task_id), attempt=task.attempt, cause=cause
            )
        return len(expired)

    async def next_due(self) -> timedelta | None:
        """Time until the next lease or deadline expires."""
        async with self.pool.connection() as conn:
            return await leases.next_expiry(conn)

    async def _find_gone_workers(self) -> set[str]:
        """List the workers that were connected to a queue and are disconnected now.

        A worker that only uses HTTP never connects to a queue, so it is never in the list.
        """
        try:
            connected = await self.queue.consumers()
        except QueueUnavailable as error:
            _log.warning("queue_unavailable", error=repr(error))
            return set()
        if connected is None:  # the queue service does not know its consumers
            return set()
        gone = self.known_workers - connected
        if len(gone) > _MAX_KNOWN_WORKERS:
            self.known_workers.clear()
        self.known_workers.update(connected)
        return gone


def _find_cause(task: ExpiredAttempt, gone: set[str]) -> Cause:
    if task.past_deadline:
        return Cause.HARD_TIMEOUT
    return Cause.WORKER_GONE if task.worker_id in gone else Cause.LEASE_EXPIRED


def _message(task: ExpiredAttempt, cause: Cause) -> str:
    if cause == Cause.HARD_TIMEOUT:
        return "the attempt ran longer than the job's timeout"
    if cause == Cause.WORKER_GONE:
        return f"worker {task.worker_id} disconnected and its lease expired"
    return f"worker {task.worker_id} sent no heartbeat before its lease expired"
