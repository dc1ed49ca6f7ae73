"""When schedules are due, and which of the ticks that nobody fired are made up for. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError


@dataclass(frozen=True)
class Schedule:
    """A cron expression on the clock of some place, and what to do about missed ticks."""

    expression: str
    timezone: str = "UTC"
    missed: str = "last"
    most_missed: int = 100


def between(schedule: Schedule, after: datetime, until: datetime) -> Iterator[datetime]:
    """Every tick later than `after` and not later than `until`, first to last, in UTC."""
    for tick in _ticks(schedule, after):
        if tick > until:
            return
        yield tick


def following(schedule: Schedule, after: datetime) -> datetime | None:
    """The next tick after an instant; None if there is none in fifty years."""
    return next(_ticks(schedule, after), None)


def due(
    schedule: Schedule, after: datetime, now: datetime, *, tolerance: timedelta
) -> list[datetime]:
    """The ticks to fire now: those on time, and what the policy wants of the missed ones."""
    found: list[datetime] = []
    missed, wanted = 0, None
    # From the newest back: a schedule of seconds after a month's pause must not be counted up.
    for tick in _ticks(schedule, now + timedelta(seconds=1), back=True):
        if tick <= after:
            break
        if tick <= now - tolerance:
            wanted = _made_up_for(schedule, found) if wanted is None else wanted
            if missed == wanted:
                break
            missed += 1
        if tick <= now:
            found.append(tick)
    return found[::-1]


def _made_up_for(schedule: Schedule, on_time: list[datetime]) -> int:
    if schedule.missed == "all":
        return schedule.most_missed
    # One that is on time stands for all that were missed before it.
    return 1 if schedule.missed == "last" and not on_time else 0


def _ticks(schedule: Schedule, start: datetime, *, back: bool = False) -> Iterator[datetime]:
    try:
        local = start.astimezone(ZoneInfo(schedule.timezone))
        for tick in CronSim(schedule.expression, local, reverse=back):
            yield tick.astimezone(UTC)
    except CronSimError:
        # Deploying checked it; an expression that a newer version accepted is skipped, not fatal.
        return
