"""Heals lost messages: an empty queue while tasks of its runtime wait, a batch nobody writes."""

from dataclasses import dataclass

import structlog

from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.queues.pgqueue import Producer
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.partitions import buffers
from trace_etl.state.tasks import task_queries

_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class WakeUpSweeper:
    pool: Pool
    queue: Producer
    wake: WakeEvents
    older_seconds: int
    batch_size: int

    async def sweep_once(self) -> int:
        """One bounded pass; a doubled wake-up changes nothing, so replicas need not agree."""
        async with self.pool.connection() as conn:
            waiting = await task_queries.queued_runtimes(conn)
        for runtime in waiting:
            if runtime == "dispatcher" or await self.queue.depth(runtime) == 0:
                await self._wake(runtime)
        await self._ask_for_batches()
        return 0  # once a period is enough: never again at once

    async def _wake(self, runtime: str) -> None:
        async with transaction(self.pool) as conn:
            woken = await task_queries.wake_forgotten(
                conn, runtime, older_seconds=self.older_seconds, limit=self.batch_size
            )
        if woken:
            _log.info("forgotten_tasks_woken", runtime=runtime, tasks=woken)
            self.wake.outbox.set()

    async def _ask_for_batches(self) -> None:
        async with transaction(self.pool) as conn:
            asked = await buffers.ask_again(conn, limit=self.batch_size)
        if asked:
            _log.warning("forgotten_batches_asked_for", batches=asked)
            self.wake.outbox.set()
