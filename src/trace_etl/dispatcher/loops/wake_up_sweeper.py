"""Resend lost wake-ups and buffer messages."""

from dataclasses import dataclass

import structlog

from trace_etl.dag.runtimes import Runtimes
from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.queues.queue import QueueProducer
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.partitions import buffers
from trace_etl.state.tasks import task_queries

_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class WakeUpSweeper:
    pool: Pool
    queue: QueueProducer
    wake: WakeEvents
    runtimes: Runtimes
    older_seconds: int
    batch_size: int

    async def sweep_once(self) -> int:
        """Resend wake-ups for queued tasks whose queue is empty. A duplicate wake-up is harmless."""
        async with self.pool.connection() as conn:
            waiting = await task_queries.list_queued_runtimes(conn)
        for runtime in waiting:
            if runtime == "dispatcher" or await self._has_no_message(runtime):
                await self._wake(runtime)
        await self._resend_buffer_messages()
        return 0  # one pass per interval is enough

    async def _has_no_message(self, runtime: str) -> bool:
        # Hidden messages belong to running tasks, so no worker receives them for a waiting task.
        return (await self.queue.depth(self.runtimes.queue_of(runtime))).visible == 0

    async def _wake(self, runtime: str) -> None:
        async with transaction(self.pool) as conn:
            woken = await task_queries.wake_overdue(
                conn, runtime, older_seconds=self.older_seconds, limit=self.batch_size
            )
        if woken:
            _log.info("wake_ups_resent", runtime=runtime, tasks=woken)
            self.wake.outbox.set()

    async def _resend_buffer_messages(self) -> None:
        async with transaction(self.pool) as conn:
            resent = await buffers.redeliver_overdue(conn, limit=self.batch_size)
        if resent:
            _log.warning("buffer_messages_resent", batches=resent)
            self.wake.outbox.set()
