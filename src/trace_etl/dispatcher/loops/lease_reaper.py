"""End attempts whose lease expired or whose deadline passed, and record the cause."""

from dataclasses import dataclass
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


@dataclass(frozen=True)
class LeaseReaper:
    pool: Pool
    queue: QueueProducer
    retry: Backoff
    batch_size: int

    async def reap_once(self) -> int:
        """Fail one bounded batch of attempts whose lease expired. Safe on every replica at once."""
        connected = await self._find_connected_workers()
        async with transaction(self.pool) as conn:
            expired = await leases.lock_expired(conn, limit=self.batch_size)
            causes = [(task, _find_cause(task, connected)) for task in expired]
            for task, cause in causes:
                await leases.reap(
                    conn,
                    task,
                    cause=cause,
                    message=_message(task, cause),
                    retry_after=retry_delay(task.attempt, self.retry, retryable=True),
                )
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

    async def _find_connected_workers(self) -> set[str] | None:
        """List the workers that are connected to a queue. None if the queue does not know."""
        try:
            return await self.queue.consumers()
        except QueueUnavailable as error:
            _log.warning("queue_unavailable", error=repr(error))
            return None


def _find_cause(task: ExpiredAttempt, connected: set[str] | None) -> Cause:
    if task.past_deadline:
        return Cause.HARD_TIMEOUT
    is_disconnected = connected is not None and task.worker_id not in connected
    return Cause.WORKER_GONE if is_disconnected else Cause.LEASE_EXPIRED


def _message(task: ExpiredAttempt, cause: Cause) -> str:
    if cause == Cause.HARD_TIMEOUT:
        return "the attempt ran longer than the job's timeout"
    if cause == Cause.WORKER_GONE:
        return f"worker {task.worker_id} disconnected and its lease expired"
    return f"worker {task.worker_id} sent no heartbeat before its lease expired"
