"""Ends attempts whose worker fell silent or ran too long, and says why."""

from dataclasses import dataclass
from datetime import timedelta

import structlog

from trace_etl.dispatcher import metrics
from trace_etl.model.task import Cause
from trace_etl.policy.retry import Backoff, retry_delay
from trace_etl.queues.pgqueue import CONNECTION_LOST, Producer
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.tasks import leases
from trace_etl.state.tasks.leases import ExpiredAttempt

_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class LeaseReaper:
    pool: Pool
    queue: Producer
    retry: Backoff
    batch_size: int

    async def reap_once(self) -> int:
        """One bounded pass. Safe on every replica at once."""
        alive = await self._alive()
        async with transaction(self.pool) as conn:
            expired = await leases.lock_expired(conn, limit=self.batch_size)
            causes = [(gone, _cause(gone, alive)) for gone in expired]
            for gone, cause in causes:
                await leases.reap(
                    conn,
                    gone,
                    cause=cause,
                    message=_message(gone, cause),
                    retry_after=retry_delay(gone.attempt, self.retry, retryable=True),
                )
        for gone, cause in causes:
            metrics.REAPS.labels(cause.value).inc()
            metrics.moved(["Canceled" if gone.cancel_requested else "Failed"])
            _log.warning(
                "attempt_reaped", task_id=str(gone.task_id), attempt=gone.attempt, cause=cause
            )
        return len(expired)

    async def next_due(self) -> timedelta | None:
        """How long until a lease or a deadline falls due."""
        async with self.pool.connection() as conn:
            return await leases.next_expiry(conn)

    async def _alive(self) -> set[str] | None:
        """Who still listens to any queue, asked outside the transaction; None: nobody knows."""
        try:
            return await self.queue.all_consumers()
        except CONNECTION_LOST as error:
            _log.warning("queue_unavailable", error=repr(error))
            return None


def _cause(gone: ExpiredAttempt, alive: set[str] | None) -> Cause:
    if gone.past_deadline:
        return Cause.HARD_TIMEOUT
    is_gone = alive is not None and gone.worker_id not in alive
    return Cause.WORKER_GONE if is_gone else Cause.LEASE_EXPIRED


def _message(gone: ExpiredAttempt, cause: Cause) -> str:
    if cause == Cause.HARD_TIMEOUT:
        return "the attempt ran longer than the job's timeout"
    if cause == Cause.WORKER_GONE:
        return f"worker {gone.worker_id} is gone and its lease ran out"
    return f"worker {gone.worker_id} sent no heartbeat before its lease ran out"
