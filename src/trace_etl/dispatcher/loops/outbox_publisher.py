"""Perform the side effects in the outbox, each at least once."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import structlog

from trace_etl.dag.runtimes import Runtimes
from trace_etl.dispatcher import metrics
from trace_etl.dispatcher.inline.runner import InlineRunner
from trace_etl.dispatcher.invocations.starter import Invocations
from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.model.errors import Unavailable
from trace_etl.policy.retry import OUTBOX_RETRY
from trace_etl.queues.queue import QueueProducer, endless_queue
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.flow import resume
from trace_etl.state.invalidations import invalidation_routing
from trace_etl.state.routing import events, outbox
from trace_etl.state.routing.outbox import LeasedRow
from trace_etl.state.tasks import task_queries

_log = structlog.stdlib.get_logger()
Perform = Callable[[list[LeasedRow]], Awaitable[None]]


@dataclass(frozen=True)
class OutboxPublisher:
    pool: Pool
    queue: QueueProducer
    inline: InlineRunner
    batch_size: int
    hold: timedelta
    max_tries: int
    wake: WakeEvents
    runtimes: Runtimes
    invocations: Invocations

    async def publish_once(self) -> int:
        """Publish one bounded batch. Safe on every replica at once: rows are leased, not locked."""
        async with self.pool.connection() as conn:
            rows = await outbox.lease(conn, limit=self.batch_size, hold=self.hold)
        kinds: dict[str, Perform] = {
            "route_event": self._route_events,
            "route_invalidation": self._route_invalidations,
            "release": self._resume_jobs,
            "wake_up": self._send_wake_ups,
            "wake_next": self._wake_next,
            "run_inline": self._run_inline,
            "invoke": self._invoke,
            "buffer_message": self._send_buffer_messages,
        }
        for kind, perform in kinds.items():
            if same_kind := [row for row in rows if row.kind == kind]:
                await self._perform(perform, same_kind)
        return len(rows)

    async def next_due(self) -> timedelta | None:
        """Time until the next outbox row is due."""
        async with self.pool.connection() as conn:
            return await outbox.next_due(conn)

    async def _perform(self, perform: Perform, rows: list[LeasedRow]) -> None:
        try:
            await perform(rows)
        except Unavailable as error:
            # An outage, not the fault of one row: do not retry row by row.
            await self._record_failure(rows, error)
        except Exception as error:
            if len(rows) == 1:
                await self._record_failure(rows, error)
                return
            for row in rows:  # isolate the failing row; publish the others
                await self._perform(perform, [row])

    async def _record_failure(self, rows: list[LeasedRow], error: Exception) -> None:
        kind = rows[0].kind
        _log.warning("outbox_failed", kind=kind, rows=len(rows), error=repr(error))
        by_tries: dict[int, list[LeasedRow]] = {}
        for row in rows:
            by_tries.setdefault(row.tries, []).append(row)
        failed_ids: list[int] = []
        async with transaction(self.pool) as conn:
            for tries, group in by_tries.items():
                failed_ids += await outbox.record_failure(
                    conn,
                    _list_outbox_ids(group),
                    error=repr(error),
                    retry_after=OUTBOX_RETRY.delay(tries),
                    max_tries=self.max_tries,
                )
        if failed_ids:
            _log.error("outbox_failed_permanently", kind=kind, outbox_ids=failed_ids)

    async def _route_events(self, rows: list[LeasedRow]) -> None:
        event_ids = [row.subject for row in rows]
        async with self.pool.connection() as conn:
            routed = await events.route(
                conn, event_ids, performed=_list_outbox_ids(rows), hold=self.hold
            )
        self.wake.pressure.set()
        metrics.TRANSITIONS.labels("Queued").inc(len(routed.task_ids))
        self.wake.backfills.set()  # a finished task makes room in its backfill window
        _log.info("events_routed", events=len(rows), tasks=len(routed.task_ids))
        if routed.wake_ups:
            await self._perform(self._send_wake_ups, routed.wake_ups)

    async def _route_invalidations(self, rows: list[LeasedRow]) -> None:
        async with transaction(self.pool) as conn:
            created = await invalidation_routing.route(conn, [row.subject for row in rows])
            await outbox.delete_performed(conn, _list_outbox_ids(rows), wait_for_disk=True)
        self.wake.pressure.set()
        _log.info("invalidations_routed", invalidations=len(rows), tasks=len(created))

    async def _resume_jobs(self, rows: list[LeasedRow]) -> None:
        for row in rows:
            position = resume.ResumePosition.from_body(row.body)
            async with transaction(self.pool) as conn:
                await resume.resume_job(conn, row.subject, after=position, limit=self.batch_size)
                await outbox.delete_performed(conn, _list_outbox_ids([row]), wait_for_disk=True)
        self.wake.pressure.set()

    async def _send_wake_ups(self, rows: list[LeasedRow]) -> None:
        queued = [row for row in rows if row.target not in self.invocations.slots]
        if len(queued) < len(rows):  # the Dispatcher starts tasks of Lambda runtimes itself
            self.wake.invocations.set()
        for bulk in (False, True):
            if group := [i for i in queued if i.bulk is bulk]:
                messages = [(self._find_queue(i), {"task_id": str(i.subject)}) for i in group]
                turns = [_choose_group(row) for row in group]
                positions = [row.range_start for row in group]
                await self.queue.send(messages, groups=turns, positions=positions, bulk=bulk)
        await self._delete_performed(rows)

    def _find_queue(self, row: LeasedRow) -> str:
        queue = self.runtimes.queue_of(row.target)
        return endless_queue(queue) if row.never_ends else queue

    async def _send_buffer_messages(self, rows: list[LeasedRow]) -> None:
        await self.queue.send([(i.target, i.body or {}) for i in rows])
        await self._delete_performed(rows)

    async def _wake_next(self, rows: list[LeasedRow]) -> None:
        async with transaction(self.pool) as conn:
            for job_id in sorted({row.subject for row in rows}):
                await task_queries.wake_next(conn, job_id)
            await outbox.delete_performed(conn, _list_outbox_ids(rows), wait_for_disk=True)

    async def _run_inline(self, rows: list[LeasedRow]) -> None:
        for row in rows:
            await self.inline.run(row.subject)
            await self._delete_performed([row])

    async def _invoke(self, rows: list[LeasedRow]) -> None:
        outcomes = await asyncio.gather(
            *(self.invocations.perform(row) for row in rows), return_exceptions=True
        )
        # Delete each separately: an accepted invocation must not be repeated because another one failed.
        await self._delete_performed([r for r, o in zip(rows, outcomes, strict=True) if o is None])
        for row, outcome in zip(rows, outcomes, strict=True):
            if isinstance(outcome, Exception):
                await self._record_failure([row], outcome)

    async def _delete_performed(self, rows: list[LeasedRow]) -> None:
        async with self.pool.connection() as conn:
            await outbox.delete_performed(conn, _list_outbox_ids(rows))


def _choose_group(row: LeasedRow) -> str | None:
    """Return the group of a wake-up in its queue, which delivers groups in turns.

    Each job is a group, so that work downstream starts before the last task upstream. Retries of a job are
    a group of their own, because their data is older than that of tasks which have not started yet.
    """
    if row.job_id is None:
        return None
    return f"{row.job_id}:retry" if row.is_retry else str(row.job_id)


def _list_outbox_ids(rows: list[LeasedRow]) -> list[int]:
    return [row.outbox_id for row in rows]
