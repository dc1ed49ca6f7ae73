"""`trace notifications`: list what was sent."""

from operator import itemgetter
from typing import Any

from trace_etl.cli.listing import ListTable, print_list
from trace_etl.cli.options import (
    DEFAULT_HOME,
    HomeOption,
    JsonOption,
    LimitOption,
    OneDagArgument,
    WideOption,
)
from trace_etl.cli.output import format_time


def _format_state(item: dict[str, Any]) -> str:
    if item["sent_at"]:
        return f"sent {format_time(item['sent_at'])}"
    if item["failed_at"]:
        return f"failed: {item['last_error']}"
    return f"next try {format_time(item['next_try_at'])}" + (
        f": {item['last_error']}" if item["last_error"] else ""
    )


def _format_subject(item: dict[str, Any]) -> str:
    detail = item["detail"]
    if item["event"] == "failure":
        return f"{detail['job']}: {detail['error_code']}"
    if "range_start" in detail:
        return f"{detail['dataset']} {detail['range_start']}-{detail['range_end']}"
    return str(detail["dataset"])


_ITEMS = ListTable(
    {
        "created": lambda item: format_time(item["created_at"]),
        "dag": itemgetter("dag"),
        "rule": itemgetter("rule"),
        "event": itemgetter("event"),
        "about": _format_subject,
        "tries": itemgetter("tries"),
        "state": _format_state,
    },
    empty="No notifications. Add rules under `notify` in a DAG file.",
    right=["tries"],
    wide=["rule", "tries"],
)


def notifications(
    dag: OneDagArgument = None,
    limit: LimitOption = 50,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """List notifications, newest first."""
    print_list(home, "/v1/notifications", _ITEMS, as_json=as_json, dag=dag, limit=limit)
