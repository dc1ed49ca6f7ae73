"""Decide when a queue pauses upstream jobs, and which ones.

A queue trips when it reaches a limit, and clears when it falls to half of that limit. A tripped queue
first pauses bulk tasks upstream. If its normal tasks alone stay at the limit, it pauses all tasks
upstream. A job is paused only by queues downstream of it, so at least one job can always make progress.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from trace_etl.model.dag import Priority
from trace_etl.model.flow import QueueLimit

J = TypeVar("J", bound=Hashable)
SHED_BULK, SHED_ALL = 1, 2
_FLOOD_FACTOR = 2
"""At this multiple of the depth limit, all work is paused without waiting for `escalate_after`."""


@dataclass(frozen=True)
class QueueLimits:
    """A job's limits: the number of queued tasks, and the age in seconds of the oldest one."""

    depth: int | None = None
    age: int | None = None


@dataclass(frozen=True)
class QueueLoad:
    """The number of queued tasks, and the age in seconds of the oldest one."""

    depth: int = 0
    age: float = 0.0


@dataclass(frozen=True)
class JobLoad:
    """The tasks that are queued for a job, by priority."""

    normal: QueueLoad = QueueLoad()
    bulk: QueueLoad = QueueLoad()
    sheds_bulk: bool = False
    """Whether the job's bulk tasks are paused by a queue downstream.

    Such tasks do not trip the job's own queue, but they keep it from clearing.
    """

    @property
    def total(self) -> QueueLoad:
        return QueueLoad(self.normal.depth + self.bulk.depth, max(self.normal.age, self.bulk.age))

    @property
    def trip_load(self) -> QueueLoad:
        return self.normal if self.sheds_bulk else self.total


@dataclass(frozen=True)
class Trip:
    """A tripped queue and the measurement that tripped it."""

    level: int
    reason: QueueLimit
    measured: int
    threshold: int
    since: datetime
    level_since: datetime

    @property
    def tier(self) -> Priority:
        return "bulk" if self.level == SHED_BULK else "normal"

    @property
    def description(self) -> str:
        if self.reason == "depth":
            return f"queue depth {self.measured}, limit {self.threshold}"
        return f"oldest task queued for {self.measured} s, limit {self.threshold} s"


def decide_trip(
    trip: Trip | None,
    limits: QueueLimits,
    load: JobLoad,
    *,
    now: datetime,
    escalate_after: timedelta,
) -> Trip | None:
    """Return the queue's trip after a new measurement. The level changes by at most one."""
    if trip is None:
        return _find_trip(limits, load.trip_load, now)
    if trip.level == SHED_ALL:
        cleared = _is_clear(limits, load.normal)
        return replace(trip, level=SHED_BULK, level_since=now) if cleared else trip
    normal_trip = _find_trip(limits, load.normal, now)
    if normal_trip and (now - trip.level_since >= escalate_after or _is_flood(limits, load.normal)):
        return replace(normal_trip, level=SHED_ALL, since=trip.since)
    return None if _is_clear(limits, load.total) else trip


def _find_trip(limits: QueueLimits, queue: QueueLoad, now: datetime) -> Trip | None:
    if limits.depth is not None and queue.depth >= limits.depth:
        return Trip(SHED_BULK, "depth", queue.depth, limits.depth, now, now)
    if limits.age is not None and queue.depth and queue.age >= limits.age:
        return Trip(SHED_BULK, "age", int(queue.age), limits.age, now, now)
    return None


def _is_clear(limits: QueueLimits, queue: QueueLoad) -> bool:
    is_shallow = limits.depth is None or queue.depth <= limits.depth // 2
    return is_shallow and (limits.age is None or not queue.depth or queue.age <= limits.age / 2)


def _is_flood(limits: QueueLimits, queue: QueueLoad) -> bool:
    return limits.depth is not None and queue.depth >= _FLOOD_FACTOR * limits.depth


def plan_pauses(
    trips: Mapping[J, Trip], edges: Iterable[tuple[J, J]]
) -> dict[tuple[J, J], Priority]:
    """Return the tier to pause for each pair of paused job and tripped job.

    `edges` are pairs of producer and consumer.
    """
    producers: dict[J, set[J]] = {}
    consumers: dict[J, set[J]] = {}
    for producer, consumer in edges:
        producers.setdefault(consumer, set()).add(producer)
        consumers.setdefault(producer, set()).add(consumer)
    return {
        (paused, job): trip.tier
        for job, trip in trips.items()
        # In a cycle, every job is upstream of every other, so pausing would stop the job that drains the queue.
        for paused in _find_reachable(job, producers) - _find_reachable(job, consumers) - {job}
    }


def _find_reachable(start: J, neighbours: Mapping[J, set[J]]) -> set[J]:
    reached: set[J] = set()
    pending = [start]
    while pending:
        added = neighbours.get(pending.pop(), set()) - reached
        reached |= added
        pending += added
    return reached
