"""`trace changes`: what was published, replaced or invalidated in a dataset."""

import json
from collections.abc import Generator
from typing import Annotated, Any

import typer

from trace_etl.cli.client import Answer, StackClient, quote_segment, session
from trace_etl.cli.options import (
    DEFAULT_HOME,
    DatasetArgument,
    HomeOption,
    JsonOption,
    WideOption,
)
from trace_etl.cli.output import Columns, format_time, print_items, print_json

_MAX_INTERVAL = 5.0  # invalidations are in the log, but not in the change stream
_PAGE = 1000


def changes(
    name: DatasetArgument,
    since: Annotated[
        str | None,
        typer.Option(metavar="CURSOR", help="Only changes after this cursor, or `now`."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new changes until Ctrl-C.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """List the changes of a dataset, oldest first.

    With --follow and --json, prints one JSON object per line.
    """
    with session(home) as client:
        if follow:
            _follow(client, name, since, as_json)
        else:
            _print_changes(_read_all(client, name, since), as_json)


def _follow(client: StackClient, name: str, since: str | None, as_json: bool) -> None:
    from trace_etl.cli.tasks.watch import change_signals

    try:
        with change_signals(client, max_interval=_MAX_INTERVAL) as signals:
            for _ in signals:
                for page in _read_pages(client, name, since):
                    since = page["cursor"]
                    for item in page["items"]:
                        typer.echo(json.dumps(item) if as_json else _format_line(item))
    except KeyboardInterrupt:
        typer.echo(f"Continue with --since {since}", err=True)


def _read_all(client: StackClient, name: str, since: str | None) -> Answer:
    pages = list(_read_pages(client, name, since))
    return {**pages[-1], "items": [item for page in pages for item in page["items"]]}


def _read_pages(client: StackClient, name: str, since: str | None) -> Generator[Answer]:
    path = f"/v1/datasets/{quote_segment(name)}/changes"
    more = True
    while more:
        page = client.get(path, since=since, limit=_PAGE)
        yield page
        since, more = page["cursor"], page["more"]


def _print_changes(answer: Answer, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    if answer["items"]:
        print_items(answer["items"], _CHANGES, right=("rows",), wide=("old", "new"))
    else:
        typer.echo("No changes.")
    typer.echo(f"Continue with --since {answer['cursor']}", err=True)


def _format_line(item: dict[str, Any]) -> str:
    when = format_time(item["changed_at"])
    return f"{when}  {item['kind']:<11}  {_format_scope(item)}  {item['reason']}  {item['cursor']}"


def _format_scope(item: dict[str, Any]) -> str:
    if item["kind"] == "version":
        return f"everything: version {item['dataset_version']}"
    if item["end"] is not None:
        first = "up to " if item["start"] is None else f"{item['start']}-"
        return f"{first}{item['end']}"
    return item["partition_key"] or "everything"


def _format_hash(value: str | None) -> str | None:
    return value.rpartition(":")[2][:12] if value else None


_CHANGES: Columns = {
    "changed": lambda item: format_time(item["changed_at"]),
    "kind": lambda item: item["kind"],
    "scope": _format_scope,
    "reason": lambda item: item["reason"],
    "rows": lambda item: item["row_count"],
    "old": lambda item: _format_hash(item["old_hash"]),
    "new": lambda item: _format_hash(item["new_hash"]),
    "cursor": lambda item: item["cursor"],
}
