"""Schedules of cron sources."""

from datetime import datetime
from typing import Any

from trace_etl.api.body import ListReply, Reply


class ScheduleItem(Reply):
    dag: str
    job: str
    schedule: str
    options: dict[str, Any]


class ScheduleList(ListReply[ScheduleItem]):
    """One page of schedules."""


class LastTick(Reply):
    tick: datetime | None
    """The newest tick of the source; null if it has none."""
