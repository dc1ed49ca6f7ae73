"""`trace batches`: list, show, replay and drop the batches of buffered datasets."""

from operator import itemgetter
from typing import Annotated

import typer

from trace_etl.cli.client import Answer, StackClient, quote_segment, session
from trace_etl.cli.ids import resolve_id
from trace_etl.cli.listing import ListTable, print_list
from trace_etl.cli.options import (
    DEFAULT_HOME,
    DatasetArgument,
    HomeOption,
    JsonOption,
    LimitOption,
    WideOption,
)
from trace_etl.cli.output import (
    format_id,
    format_job,
    format_number,
    format_time,
    print_answer,
    print_fields,
)

group = typer.Typer(no_args_is_help=True, help="List, replay and drop buffered batches.")
_BATCHES = ListTable(
    {
        "batch": lambda batch: format_id(batch["publish_id"]),
        "from": format_job,
        "state": itemgetter("state"),
        "rows": lambda batch: format_number(batch["row_count"]),
        "published": lambda batch: format_time(batch["accepted_at"]),
        "error": lambda batch: batch["error_message"] or batch["error_code"],
    },
    empty="No batches.",
    right=["rows"],
    wide=["published"],
)
_DEAD = ListTable(
    {
        "batch": lambda batch: format_id(batch["publish_id"]),
        "dataset": itemgetter("dataset"),
        "from": format_job,
        "published": lambda batch: format_time(batch["accepted_at"]),
        "reason": lambda batch: batch["error_message"] or batch["error_code"],
    },
    empty="No failed batches.",
    wide=["published"],
)
BatchArgument = Annotated[
    str, typer.Argument(metavar="BATCH", help="Id of the batch, or its beginning.")
]


@group.command("list")
def list_batches(
    name: DatasetArgument,
    failed: Annotated[bool, typer.Option("--failed", help="Only batches that failed.")] = False,
    limit: LimitOption = 50,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the batches of a dataset, newest first."""
    path = f"/v1/datasets/{quote_segment(name)}/batches"
    state = "failed" if failed else None
    print_list(home, path, _BATCHES, as_json=as_json, state=state, limit=limit)


@group.command()
def dead(
    limit: LimitOption = 50,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """List failed batches, newest first."""
    print_list(home, "/v1/batches", _DEAD, as_json=as_json, state="failed", limit=limit)


@group.command()
def show(
    batch: BatchArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False
) -> None:
    """Show one batch and why it failed."""
    with session(home) as client:
        answer = client.get(_make_path(client, batch))
    print_answer(answer, as_json, _print_batch)


@group.command()
def replay(
    batch: BatchArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False
) -> None:
    """Deliver an unwritten batch again."""
    with session(home) as client:
        answer = client.post(f"{_make_path(client, batch)}/retry")
    print_answer(answer, as_json, lambda _: typer.echo(f"Replaying batch {batch}."))


@group.command()
def drop(
    batch: BatchArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False
) -> None:
    """Forget a failed batch.

    Its rows are never written, and the storage sweeper deletes its file.
    """
    with session(home) as client:
        answer = client.post(f"{_make_path(client, batch)}/drop")
    print_answer(answer, as_json, lambda _: typer.echo(f"Dropped batch {batch}."))


def _make_path(client: StackClient, batch: str) -> str:
    return f"/v1/batches/{resolve_id(client, 'batch', batch)}"


group.command("retry", hidden=True)(replay)  # the name in earlier releases


def _print_batch(batch: Answer) -> None:
    print_fields(
        {
            "batch": batch["publish_id"],
            "dataset": batch["dataset"],
            "from": format_job(batch),
            "task": f"{batch['task_id']}, attempt {batch['attempt']}",
            "file": batch["batch_uri"],
            "type": batch["content_type"],
            "state": batch["state"],
            "rows": format_number(batch["row_count"]),
            "published": format_time(batch["accepted_at"]),
            "ended": batch["ended_at"] and format_time(batch["ended_at"]),
            "error": batch["error_code"],
            "reason": batch["error_message"],
        }
    )
