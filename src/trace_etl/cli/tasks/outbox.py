"""`trace outbox`: list pending and failed side effects, and retry the failed ones."""

from operator import itemgetter
from typing import Annotated

import typer

from trace_etl.cli.client import session
from trace_etl.cli.listing import ListTable, print_list
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption, LimitOption, WideOption
from trace_etl.cli.output import format_time, print_answer

group = typer.Typer(no_args_is_help=True, help="List and retry side effects.")
_ROWS = ListTable(
    {
        "row": itemgetter("outbox_id"),
        "kind": itemgetter("kind"),
        "target": lambda row: row["target"] or None,
        "subject": itemgetter("subject"),
        "tries": itemgetter("tries"),
        "next try": lambda row: None if row["failed_at"] else format_time(row["next_try_at"]),
        "failed": lambda row: format_time(row["failed_at"]),
        "error": itemgetter("last_error"),
    },
    wide=["target", "next try"],
    empty="No such rows in the outbox.",
    right=["row", "tries"],
)


@group.command("list")
def list_rows(
    failed: Annotated[
        bool | None,
        typer.Option("--failed/--pending", help="Only rows that failed, or only pending rows."),
    ] = None,
    limit: LimitOption = 50,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """List outbox rows, oldest first."""
    print_list(home, "/v1/outbox", _ROWS, as_json=as_json, failed=failed, limit=limit)


@group.command()
def replay(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Retry all outbox rows that failed."""
    with session(home) as client:
        answer = client.post("/v1/outbox/replay")
    print_answer(answer, as_json, lambda a: typer.echo(f"Retrying {a['replayed']} rows."))
