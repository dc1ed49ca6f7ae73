"""`trace batches`: what became of the batches of a buffered dataset."""

from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID

import typer

from trace_etl.cli.client import session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import local_time, number, print_json, print_rows


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    batches = typer.Typer(no_args_is_help=True, help="See what is written to buffered datasets.")
    batches.command("list")(list_batches)
    batches.command()(retry)
    app.add_typer(batches, name="batches")


def list_batches(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A published dataset.")],
    failed: Annotated[bool, typer.Option("--failed", help="Only what was refused.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """List the batches published to a dataset, newest first, and why some were refused."""
    with session(home) as client:
        path = f"/v1/datasets/{quote(name, safe='')}/batches"
        answer = client.get(path, state="failed" if failed else None, limit=limit)
    if as_json:
        print_json(answer)
    else:
        _print_items(answer["items"])


def retry(
    batch: Annotated[UUID, typer.Argument(metavar="BATCH", help="A batch that is not written.")],
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Try once more to write a batch that failed, or that waits."""
    with session(home) as client:
        answer = client.post(f"/v1/batches/{batch}/retry")
    if as_json:
        print_json(answer)
    else:
        typer.echo(f"Batch {batch} is tried again.")


def _print_items(items: list[dict[str, Any]]) -> None:
    if not items:
        typer.echo("No batches.")
        return
    print_rows(
        ["batch", "from", "state", "rows", "published", "why"],
        [
            [
                item["publish_id"],
                f"{item['dag']}.{item['job']}",
                item["state"],
                None if item["row_count"] is None else number(item["row_count"]),
                local_time(item["accepted_at"]),
                item["error_message"] or item["error_code"],
            ]
            for item in items
        ],
        right=["rows"],
    )
