"""`trace outbox`: side effects that wait or failed for good, and trying them again."""

from typing import Annotated, Any

import typer

from trace_etl.cli.client import session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import local_time, print_json, print_rows


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    outbox = typer.Typer(no_args_is_help=True, help="See and replay what could not be sent.")
    outbox.command("list")(list_rows)
    outbox.command()(replay)
    app.add_typer(outbox, name="outbox")


def list_rows(
    failed: Annotated[
        bool | None,
        typer.Option("--failed/--pending", help="Only what failed for good, or only the rest."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """List what is still to be sent, routed or run, oldest first."""
    with session(home) as client:
        answer = client.get("/v1/outbox", failed=failed, limit=limit)
    if as_json:
        print_json(answer)
    else:
        _print_items(answer["items"])


def replay(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Give everything that failed for good a new set of tries."""
    with session(home) as client:
        answer = client.post("/v1/outbox/replay")
    if as_json:
        print_json(answer)
    else:
        typer.echo(f"Trying {answer['replayed']} again.")


def _print_items(items: list[dict[str, Any]]) -> None:
    if not items:
        typer.echo("Nothing waits.")
        return
    print_rows(
        ["row", "what", "to", "about", "tries", "next try", "failed", "why"],
        [
            [
                item["outbox_id"],
                item["kind"],
                item["target"] or None,
                item["subject"],
                item["tries"],
                None if item["failed_at"] else local_time(item["next_try_at"]),
                item["failed_at"] and local_time(item["failed_at"]),
                item["last_error"],
            ]
            for item in items
        ],
        right=["row", "tries"],
    )
