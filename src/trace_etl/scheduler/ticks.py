"""When schedules are due. Pure; times are UTC."""

from collections.abc import Iterator
from datetime import datetime

from cronsim import CronSim, CronSimError


def between(schedule: str, after: datetime, until: datetime) -> Iterator[datetime]:
    """Every tick later than `after` and not later than `until`, first to last."""
    for tick in _ticks(schedule, after):
        if tick > until:
            return
        yield tick


def following(schedule: str, after: datetime) -> datetime | None:
    """The next tick after an instant; None if there is none in fifty years."""
    return next(_ticks(schedule, after), None)


def _ticks(schedule: str, after: datetime) -> Iterator[datetime]:
    try:
        yield from CronSim(schedule, after)
    except CronSimError:
        # Deploying checked it; an expression that a newer version accepted is skipped, not fatal.
        return
