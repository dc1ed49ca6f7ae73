"""`trace audit`: the record of all queries."""

from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Annotated, Any

import typer

from trace_etl.cli.client import EXIT_REJECTED, fail
from trace_etl.cli.listing import ListTable, print_list
from trace_etl.cli.options import (
    DEFAULT_HOME,
    AfterOption,
    HomeOption,
    JsonOption,
    LimitOption,
    WideOption,
)
from trace_etl.cli.output import format_id, format_time

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_TIME = "A time (2026-01-31T12:00) or an age (90s, 15m, 24h, 7d)."


def audit(
    user: Annotated[str | None, typer.Option(help="Only queries of this user.")] = None,
    task: Annotated[str | None, typer.Option(help="Only queries of this task.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Only queries of this dataset.")] = None,
    outcome: Annotated[
        str | None, typer.Option(help="Only this outcome: ok, or the code of a refusal.")
    ] = None,
    since: Annotated[str | None, typer.Option(help=f"Only newer queries. {_TIME}")] = None,
    until: Annotated[str | None, typer.Option(help=f"Only older queries. {_TIME}")] = None,
    limit: LimitOption = 50,
    after: AfterOption = None,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """List queries, newest first.

    Refused queries are listed too. The SQL text is never recorded. Only admins can list queries.
    """
    print_list(
        home,
        "/v1/audit",
        _QUERIES,
        as_json=as_json,
        user=user,
        task_id=task,
        dataset=dataset,
        outcome=outcome,
        since=_parse_time("--since", since),
        until=_parse_time("--until", until),
        limit=limit,
        after=after,
    )


def _parse_time(option: str, text: str | None) -> str | None:
    """Return a time with its zone. Without a zone, the time is local."""
    if text is None:
        return None
    if text[:-1].isdecimal() and text[-1] in _UNITS:
        return (datetime.now(UTC) - timedelta(**{_UNITS[text[-1]]: int(text[:-1])})).isoformat()
    try:
        return datetime.fromisoformat(text).astimezone(UTC).isoformat()
    except ValueError:
        fail(
            [f"{option}: {text!r} is neither a time nor an age; write 24h or 2026-01-31T12:00"],
            EXIT_REJECTED,
        )


def _format_caller(query: dict[str, Any]) -> str:
    return query["user"] or f"task {format_id(query['task_id'])}, attempt {query['attempt']}"


def _format_datasets(query: dict[str, Any]) -> str:
    return ", ".join(
        f"{d['dataset']} ({d['dataset_version'][:8]})" if d["dataset_version"] else d["dataset"]
        for d in query["datasets"]
    )


_QUERIES = ListTable(
    {
        "asked": lambda query: format_time(query["asked_at"]),
        "by": _format_caller,
        "outcome": itemgetter("outcome"),
        "datasets": _format_datasets,
        "rows": itemgetter("row_count"),
        "bytes": itemgetter("byte_count"),
        "ms": itemgetter("elapsed_ms"),
    },
    empty="No queries.",
    right=("rows", "bytes", "ms"),
    wide=["bytes"],
    next_command="trace audit",
)
