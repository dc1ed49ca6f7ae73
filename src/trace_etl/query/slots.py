"""Slots of running queries, shared between users or between tasks."""

from trace_etl.http.fair_slots import FairSlots, SlotNames
from trace_etl.query.errors import TooManyQueries

_USERS = SlotNames("queries", "user", "TRACE_QUERY", TooManyQueries)
_TASKS = SlotNames("queries", "task", "TRACE_TASK_QUERY", TooManyQueries)


def make_user_slots(slots: int, per_user: int, max_waiting: int) -> FairSlots:
    return FairSlots(slots, per_user, max_waiting, _USERS)


def make_task_slots(slots: int, per_task: int, max_waiting: int) -> FairSlots:
    return FairSlots(slots, per_task, max_waiting, _TASKS)
