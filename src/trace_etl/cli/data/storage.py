"""`trace storage`: show what occupies object storage, and delete what nothing uses."""

from operator import itemgetter
from typing import Annotated, Any

import typer

from trace_etl.cli.client import StackClient, session
from trace_etl.cli.listing import ListTable, print_list
from trace_etl.cli.options import (
    DEFAULT_HOME,
    AfterOption,
    HomeOption,
    JsonOption,
    LimitOption,
    WideOption,
)
from trace_etl.cli.output import (
    Columns,
    format_duration,
    format_number,
    format_size,
    format_time,
    print_answer,
    print_items,
)
from trace_etl.cli.progress import show_counts

group = typer.Typer(invoke_without_command=True, help="Show what occupies storage, and sweep it.")
_KEPT_BY = {
    "attempt": "its attempt may still commit",
    "pin": "a running task reads it",
    "lineage": "used data was made from it",
    "delivery": "the batch is not written",
    "layout": "the platform did not write it",
}
_USAGE: Columns = {
    "dataset": lambda item: item["dataset"] or "(tasks)",
    "kind": itemgetter("kind"),
    "prefixes": lambda item: format_number(item["prefixes"]),
    "objects": lambda item: format_number(item["objects"]),
    "size": lambda item: format_size(item["bytes"]),
    "due": lambda item: format_size(item["due_bytes"]) if item["due_prefixes"] else "-",
    "in use": lambda item: format_number(item["kept_prefixes"] or None),
    "next sweep": lambda item: format_time(item["next_sweep_at"]),
}
_UNUSED: Columns = {
    "key": itemgetter("key"),
    "kind": itemgetter("kind"),
    "dataset": lambda item: item["dataset"] or "(tasks)",
    "objects": lambda item: format_number(item["objects"]),
    "size": lambda item: format_size(item["bytes"]),
    "unused since": lambda item: format_time(item["unused_since"]),
    "sweep": lambda item: _KEPT_BY.get(item["kept_by"]) or format_time(item["sweep_at"]),
}


@group.callback()
def storage(
    context: typer.Context,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what occupies object storage, by dataset and kind, and when it is deleted."""
    if context.invoked_subcommand is not None:
        return
    with session(home) as client:
        answer = client.get("/v1/storage")
    print_answer(answer, as_json, _print_usage)


@group.command("unused")
def list_unused(
    limit: LimitOption = 50,
    after: AfterOption = None,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """List unused storage, next to delete first."""
    table = _make_unused_table("Nothing is unused.", "trace storage unused")
    print_list(home, "/v1/storage/unused", table, as_json=as_json, limit=limit, after=after)


@group.command()
def sweep(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted; delete nothing.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete unused storage past its retention."""
    if dry_run:
        table = _make_unused_table("Nothing is due.", "")
        path = "/v1/storage/unused"
        print_list(home, path, table, as_json=as_json, all_pages=True, due=True)
        return
    with session(home) as client:
        total = _sweep_until_complete(client)
    print_answer(total, as_json, _print_swept)


def _sweep_until_complete(client: StackClient) -> dict[str, Any]:
    with show_counts() as report:
        total = client.post("/v1/storage/sweep")
        left = 0 if total["is_complete"] else _count_due(client)
        due = total["prefixes"] + left
        while not total["is_complete"]:
            report("prefixes", total["prefixes"], due, format_size(total["bytes"]))
            more = client.post("/v1/storage/sweep")
            counts = {name: total[name] + more[name] for name in total if name != "is_complete"}
            total = {**counts, "is_complete": more["is_complete"]}
    return total


def _count_due(client: StackClient) -> int:
    return sum(item["due_prefixes"] for item in client.get("/v1/storage")["items"])


def _make_unused_table(empty: str, next_command: str) -> ListTable:
    return ListTable(
        _UNUSED,
        empty=empty,
        right=["objects", "size"],
        wide=["dataset", "objects", "unused since"],
        next_command=next_command,
    )


def _print_usage(answer: dict[str, Any]) -> None:
    if answer["items"]:
        print_items(
            answer["items"],
            _USAGE,
            right=["prefixes", "objects", "size", "due", "in use"],
            wide=["prefixes", "in use"],
        )
    else:
        typer.echo("Nothing is stored.")
    kept = ", ".join(
        f"{kind} {format_days(seconds)}" for kind, seconds in answer["retention_seconds"].items()
    )
    typer.echo(f"Kept after use: {kept}.")
    if not answer["sweeps"]:
        typer.echo(
            "Sweeps are off (TRACE_SWEEP_STORAGE). `trace storage sweep` deletes what is due."
        )
    foreign = answer["foreign"]
    if foreign["objects"]:
        typer.echo(
            f"{format_number(foreign['objects'])} objects ({format_size(foreign['bytes'])}) were not "
            "written by Trace; they are never deleted."
        )


def format_days(seconds: float) -> str:
    """Format a retention: whole days as `7 d`, other times like a duration."""
    days, rest = divmod(seconds, 86_400)
    return format_duration(seconds) if rest or not days else f"{days:.0f} d"


def _describe(swept: dict[str, Any]) -> str:
    return (
        f"{format_number(swept['objects'])} objects ({format_size(swept['bytes'])}) of "
        f"{format_number(swept['prefixes'])} prefixes and {format_number(swept['batches'])} batches"
    )


def _print_swept(swept: dict[str, Any]) -> None:
    typer.echo(f"Deleted {_describe(swept)}.")
    if swept["failures"]:
        typer.echo(
            f"{swept['failures']} prefixes or batches could not be deleted and are tried again; the "
            "log of the Dispatcher has the reasons (`sweep_failed`).",
            err=True,
        )
