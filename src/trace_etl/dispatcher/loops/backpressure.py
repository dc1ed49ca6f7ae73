"""Measure queues that have limits; pause and resume the jobs upstream of them."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import structlog

from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.policy.backpressure import Trip, decide_trip, plan_pauses
from trace_etl.state.db.pool import Conn, Pool, transaction
from trace_etl.state.flow import pressure, resume
from trace_etl.state.flow.pressure import MeasuredQueue, NewPause
from trace_etl.state.routing import events

_log = structlog.stdlib.get_logger()
_POLL_WITH_LIMITS = timedelta(seconds=1)
_POLL_UNDER_PRESSURE = timedelta(seconds=0.25)


@dataclass(frozen=True)
class Backpressure:
    pool: Pool
    wake: WakeEvents
    escalate_after: timedelta
    batch_size: int

    async def balance_once(self) -> int:
        """Check all queues with limits. One replica at a time holds the lock."""
        async with self.pool.connection() as conn:
            state = await pressure.read_state(conn)
        changed = await self._measure_and_balance() if state.has_limits or state.has_pressure else 0
        routed = await self._route_overlooked() if state.has_deferred_events or changed else 0
        if changed or routed:
            self.wake.outbox.set()
        return 0  # a queue changes one level per pass; wait for the next interval

    async def next_due(self) -> timedelta | None:
        """Poll while queues have limits, because they age and drain without a wake event."""
        async with self.pool.connection() as conn:
            state = await pressure.read_state(conn)
        if state.has_pressure:
            return _POLL_UNDER_PRESSURE
        return _POLL_WITH_LIMITS if state.has_limits else None

    async def _measure_and_balance(self) -> int:
        async with transaction(self.pool) as conn:
            if not await pressure.try_lock(conn):
                return 0
            queues = await pressure.measure_queues(conn)
            changed, decided = await self._balance(conn, queues)
        for queue in queues:
            _log_change(queue, decided[queue.job_id])
        return changed

    async def _balance(
        self, conn: Conn, queues: list[MeasuredQueue]
    ) -> tuple[int, dict[UUID, Trip | None]]:
        decided = {
            m.job_id: decide_trip(
                m.trip, m.limits, m.load, now=m.at, escalate_after=self.escalate_after
            )
            for m in queues
        }
        trips = {job_id: trip for job_id, trip in decided.items() if trip}
        before = {m.job_id: m.trip for m in queues if m.trip}
        if not trips and not before:
            return 0, decided
        if trips != before:
            await pressure.replace_trips(conn, trips)
        names = {m.job_id: m.name for m in queues}
        # Read the edges at every pass: a deploy may have changed them.
        planned = plan_pauses(trips, await pressure.list_edges(conn))
        wanted = [
            NewPause(job, by, f"backpressure of {names[by]}", tier, trips[by].description)
            for (job, by), tier in planned.items()
        ]
        return await pressure.replace_pauses(conn, wanted), decided

    async def _route_overlooked(self) -> int:
        async with transaction(self.pool) as conn:
            job_ids = await resume.list_missed_jobs(conn, limit=self.batch_size)
            for job_id in job_ids:
                event_ids = await resume.take_deferred(conn, job_id, limit=self.batch_size)
                await events.route(conn, event_ids)
        return len(job_ids)


def _log_change(queue: MeasuredQueue, trip: Trip | None) -> None:
    if trip is None and queue.trip is not None:
        _log.info("queue_cleared", job=queue.name)
    elif trip is not None and (queue.trip is None or trip.level != queue.trip.level):
        _log.info("queue_over_limit", job=queue.name, pauses=trip.tier, reason=trip.description)
