"""Compute the ticks of a schedule that are due, including missed ticks. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError


@dataclass(frozen=True)
class Schedule:
    """A cron expression in a time zone, and the policy for missed ticks."""

    expression: str
    timezone: str = "UTC"
    missed: str = "last"
    max_missed: int = 100


def between(schedule: Schedule, after: datetime, until: datetime) -> Iterator[datetime]:
    """Yield the ticks after `after`, up to and including `until`, in UTC."""
    for tick in _generate_ticks(schedule, after):
        if tick > until:
            return
        yield tick


def following(schedule: Schedule, after: datetime) -> datetime | None:
    """Return the next tick; None if there is none in fifty years."""
    return next(_generate_ticks(schedule, after), None)


def due(
    schedule: Schedule, after: datetime, now: datetime, *, tolerance: timedelta
) -> list[datetime]:
    """List the ticks to fire now: ticks on time, and missed ticks that the policy allows."""
    due_ticks: list[datetime] = []
    missed, max_missed = 0, None
    # Newest first: after a long pause, a schedule may have too many missed ticks to visit all of them.
    for tick in _generate_ticks(schedule, now + timedelta(seconds=1), back=True):
        if tick <= after:
            break
        if tick <= now - tolerance:
            max_missed = _count_repeats(schedule, due_ticks) if max_missed is None else max_missed
            if missed == max_missed:
                break
            missed += 1
        if tick <= now:
            due_ticks.append(tick)
    return due_ticks[::-1]


def _count_repeats(schedule: Schedule, on_time: list[datetime]) -> int:
    if schedule.missed == "all":
        return schedule.max_missed
    # A tick on time replaces all ticks missed before it.
    return 1 if schedule.missed == "last" and not on_time else 0


def _generate_ticks(
    schedule: Schedule, start: datetime, *, back: bool = False
) -> Iterator[datetime]:
    try:
        local = start.astimezone(ZoneInfo(schedule.timezone))
        for tick in CronSim(schedule.expression, local, reverse=back):
            yield tick.astimezone(UTC)
    except CronSimError:
        # The deploy has checked the expression. If only a newer version accepts it, it has no ticks here.
        return
