"""Perform the side effects in the outbox, each at least once."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import structlog

from trace_etl.dispatcher import metrics
from trace_etl.dispatcher.inline.runner import InlineRunner
from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.model.errors import Unavailable
from trace_etl.policy.retry import OUTBOX_RETRY
from trace_etl.queues.queue import QueueProducer
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.flow import resume
from trace_etl.state.partitions import invalidation_routing
from trace_etl.state.routing import events, outbox
from trace_etl.state.routing.outbox import Intent
from trace_etl.state.tasks import task_queries

_log = structlog.stdlib.get_logger()
Perform = Callable[[list[Intent]], Awaitable[None]]


@dataclass(frozen=True)
class OutboxPublisher:
    pool: Pool
    queue: QueueProducer
    inline: InlineRunner
    batch_size: int
    hold: timedelta
    max_tries: int
    wake: WakeEvents

    async def publish_once(self) -> int:
        """Publish one bounded batch. Safe on every replica at once: rows are leased, not locked."""
        async with self.pool.connection() as conn:
            intents = await outbox.lease(conn, limit=self.batch_size, hold=self.hold)
        kinds: dict[str, Perform] = {
            "route_event": self._route_events,
            "route_invalidation": self._route_invalidations,
            "release": self._resume_jobs,
            "wake_up": self._send_wake_ups,
            "wake_next": self._wake_next,
            "run_inline": self._run_inline,
            "buffer_message": self._send_buffer_messages,
        }
        for kind, perform in kinds.items():
            if same_kind := [intent for intent in intents if intent.kind == kind]:
                await self._perform(perform, same_kind)
        return len(intents)

    async def next_due(self) -> timedelta | None:
        """Time until the next outbox row is due."""
        async with self.pool.connection() as conn:
            return await outbox.next_due(conn)

    async def _perform(self, perform: Perform, intents: list[Intent]) -> None:
        try:
            await perform(intents)
        except Unavailable as error:
            # An outage, not the fault of one row: do not retry row by row.
            await self._record_failure(intents, error)
        except Exception as error:
            if len(intents) == 1:
                await self._record_failure(intents, error)
                return
            for intent in intents:  # isolate the failing row; publish the others
                await self._perform(perform, [intent])

    async def _record_failure(self, intents: list[Intent], error: Exception) -> None:
        kind = intents[0].kind
        _log.warning("outbox_failed", kind=kind, rows=len(intents), error=repr(error))
        by_tries: dict[int, list[Intent]] = {}
        for intent in intents:
            by_tries.setdefault(intent.tries, []).append(intent)
        failed_ids: list[int] = []
        async with transaction(self.pool) as conn:
            for tries, group in by_tries.items():
                failed_ids += await outbox.record_failure(
                    conn,
                    _outbox_ids(group),
                    error=repr(error),
                    retry_after=OUTBOX_RETRY.delay(tries),
                    max_tries=self.max_tries,
                )
        if failed_ids:
            _log.error("outbox_failed_permanently", kind=kind, outbox_ids=failed_ids)

    async def _route_events(self, intents: list[Intent]) -> None:
        event_ids = [intent.subject for intent in intents]
        async with self.pool.connection() as conn:
            routed = await events.route(
                conn, event_ids, performed=_outbox_ids(intents), hold=self.hold
            )
        self.wake.pressure.set()
        metrics.TRANSITIONS.labels("Queued").inc(len(routed.task_ids))
        self.wake.backfills.set()  # a finished task makes room in its backfill window
        _log.info("events_routed", events=len(intents), tasks=len(routed.task_ids))
        if routed.wake_ups:
            await self._perform(self._send_wake_ups, routed.wake_ups)

    async def _route_invalidations(self, intents: list[Intent]) -> None:
        async with transaction(self.pool) as conn:
            created = await invalidation_routing.route(conn, [intent.subject for intent in intents])
            await outbox.delete_performed(conn, _outbox_ids(intents), wait_for_disk=True)
        self.wake.pressure.set()
        _log.info("invalidations_routed", invalidations=len(intents), tasks=len(created))

    async def _resume_jobs(self, intents: list[Intent]) -> None:
        for intent in intents:
            position = resume.ResumePosition.from_body(intent.body)
            async with transaction(self.pool) as conn:
                await resume.resume_job(conn, intent.subject, after=position, limit=self.batch_size)
                await outbox.delete_performed(conn, _outbox_ids([intent]), wait_for_disk=True)
        self.wake.pressure.set()

    async def _send_wake_ups(self, intents: list[Intent]) -> None:
        for bulk in (False, True):
            if group := [i for i in intents if i.bulk is bulk]:
                messages = [(i.target, {"task_id": str(i.subject)}) for i in group]
                await self.queue.send(messages, bulk=bulk)
        await self._delete_performed(intents)

    async def _send_buffer_messages(self, intents: list[Intent]) -> None:
        await self.queue.send([(i.target, i.body or {}) for i in intents])
        await self._delete_performed(intents)

    async def _wake_next(self, intents: list[Intent]) -> None:
        async with transaction(self.pool) as conn:
            for job_id in sorted({intent.subject for intent in intents}):
                await task_queries.wake_next(conn, job_id)
            await outbox.delete_performed(conn, _outbox_ids(intents), wait_for_disk=True)

    async def _run_inline(self, intents: list[Intent]) -> None:
        for intent in intents:
            await self.inline.run(intent.subject)
            await self._delete_performed([intent])

    async def _delete_performed(self, intents: list[Intent]) -> None:
        async with self.pool.connection() as conn:
            await outbox.delete_performed(conn, _outbox_ids(intents))


def _outbox_ids(intents: list[Intent]) -> list[int]:
    return [intent.outbox_id for intent in intents]
