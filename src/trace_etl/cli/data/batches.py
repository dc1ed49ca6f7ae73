"""`trace batches`: list and retry the batches of a buffered dataset."""

from operator import itemgetter
from typing import Annotated
from uuid import UUID

import typer

from trace_etl.cli.client import quote_segment, session
from trace_etl.cli.listing import ListTable, print_list
from trace_etl.cli.options import DEFAULT_HOME, DatasetArgument, HomeOption, JsonOption, LimitOption
from trace_etl.cli.output import format_job, format_number, format_time, print_answer

group = typer.Typer(no_args_is_help=True, help="List and retry buffered batches.")
_BATCHES = ListTable(
    {
        "batch": itemgetter("publish_id"),
        "from": format_job,
        "state": itemgetter("state"),
        "rows": lambda batch: format_number(batch["row_count"]),
        "published": lambda batch: format_time(batch["accepted_at"]),
        "error": lambda batch: batch["error_message"] or batch["error_code"],
    },
    empty="No batches.",
    right=["rows"],
)


@group.command("list")
def list_batches(
    name: DatasetArgument,
    failed: Annotated[bool, typer.Option("--failed", help="Only batches that failed.")] = False,
    limit: LimitOption = 50,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """List the batches of a dataset, newest first."""
    path = f"/v1/datasets/{quote_segment(name)}/batches"
    state = "failed" if failed else None
    print_list(home, path, _BATCHES, as_json=as_json, state=state, limit=limit)


@group.command()
def retry(
    batch: Annotated[UUID, typer.Argument(metavar="BATCH", help="Id of an unwritten batch.")],
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Retry a batch that failed or waits."""
    with session(home) as client:
        answer = client.post(f"/v1/batches/{batch}/retry")
    print_answer(answer, as_json, lambda _: typer.echo(f"Retrying batch {batch}."))
