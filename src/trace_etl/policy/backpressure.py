"""When a queue pushes back, and on whom. Loads and edges in, pauses out.

A queue trips when it reaches a limit and is clear again at half of it. It sheds bulk work upstream
first; all work, if its normal part alone stays at the limit. Work waits only for queues that are
strictly downstream of it, so somebody downstream of everybody who waits can always go on.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, TypeVar

Tier = Literal["bulk", "normal"]
J = TypeVar("J", bound=Hashable)
SHED_BULK, SHED_ALL = 1, 2
_FLOOD = 2  # times the limit: no patience with that


@dataclass(frozen=True)
class QueueLimits:
    """A job's thresholds: queued tasks, and seconds that the oldest of them has waited."""

    depth: int | None = None
    age: int | None = None


@dataclass(frozen=True)
class QueueLoad:
    depth: int = 0
    age: float = 0.0


@dataclass(frozen=True)
class JobLoad:
    """What is queued for a job."""

    normal: QueueLoad = QueueLoad()
    bulk: QueueLoad = QueueLoad()
    sheds_bulk: bool = False
    """Its own bulk work waits for somebody downstream: no reason to push back, but no relief."""

    @property
    def total(self) -> QueueLoad:
        return QueueLoad(self.normal.depth + self.bulk.depth, max(self.normal.age, self.bulk.age))

    @property
    def pressing(self) -> QueueLoad:
        return self.normal if self.sheds_bulk else self.total


@dataclass(frozen=True)
class Trip:
    """A queue that pushes back, with what made it do so."""

    level: int
    reason: Literal["depth", "age"]
    measured: int
    threshold: int
    since: datetime
    level_since: datetime

    @property
    def tier(self) -> Tier:
        return "bulk" if self.level == SHED_BULK else "normal"

    @property
    def words(self) -> str:
        if self.reason == "depth":
            return f"queue depth {self.measured}, limit {self.threshold}"
        return f"oldest task queued for {self.measured} s, limit {self.threshold} s"


def decide_trip(
    trip: Trip | None, limits: QueueLimits, load: JobLoad, *, now: datetime, patience: timedelta
) -> Trip | None:
    """How a queue stands after another look: one level up or down at most."""
    if trip is None:
        return _tripped(limits, load.pressing, now)
    if trip.level == SHED_ALL:
        cleared = _is_clear(limits, load.normal)
        return replace(trip, level=SHED_BULK, level_since=now) if cleared else trip
    worse = _tripped(limits, load.normal, now)
    if worse and (now - trip.level_since >= patience or _is_flood(limits, load.normal)):
        return replace(worse, level=SHED_ALL, since=trip.since)
    return None if _is_clear(limits, load.total) else trip


def _tripped(limits: QueueLimits, queue: QueueLoad, now: datetime) -> Trip | None:
    if limits.depth is not None and queue.depth >= limits.depth:
        return Trip(SHED_BULK, "depth", queue.depth, limits.depth, now, now)
    if limits.age is not None and queue.depth and queue.age >= limits.age:
        return Trip(SHED_BULK, "age", int(queue.age), limits.age, now, now)
    return None


def _is_clear(limits: QueueLimits, queue: QueueLoad) -> bool:
    shallow = limits.depth is None or queue.depth <= limits.depth // 2
    return shallow and (limits.age is None or not queue.depth or queue.age <= limits.age / 2)


def _is_flood(limits: QueueLimits, queue: QueueLoad) -> bool:
    return limits.depth is not None and queue.depth >= _FLOOD * limits.depth


def plan_pauses(trips: Mapping[J, Trip], edges: Iterable[tuple[J, J]]) -> dict[tuple[J, J], Tier]:
    """Who waits for whom, (producer, tripped job), over edges from producer to consumer."""
    producers: dict[J, set[J]] = {}
    consumers: dict[J, set[J]] = {}
    for producer, consumer in edges:
        producers.setdefault(consumer, set()).add(producer)
        consumers.setdefault(producer, set()).add(consumer)
    return {
        (paused, job): trip.tier
        for job, trip in trips.items()
        # On a loop everybody is upstream of everybody: pausing would keep the queue from draining.
        for paused in _reached(job, producers) - _reached(job, consumers) - {job}
    }


def _reached(start: J, steps: Mapping[J, set[J]]) -> set[J]:
    found: set[J] = set()
    edge = [start]
    while edge:
        fresh = steps.get(edge.pop(), set()) - found
        found |= fresh
        edge += fresh
    return found
