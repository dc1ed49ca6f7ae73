"""Arguments and options that choose tasks."""

from typing import Annotated, Any

import typer

from trace_etl.cli.client import EXIT_REJECTED, StackClient, fail
from trace_etl.cli.ids import resolve_id

TasksArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TASK]...", help="Ids of tasks, or their beginnings."),
]
DagChoice = Annotated[str | None, typer.Option("--dag", help="Tasks of this DAG.")]
JobChoice = Annotated[str | None, typer.Option("--job", help="Tasks of this job; needs --dag.")]
ErrorChoice = Annotated[
    str | None,
    typer.Option("--error", metavar="CODE", help="Tasks with this error, such as rpc_unreachable."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be changed and change nothing.")
]


def require_choice(tasks: list[str] | None, dag: str | None, error: str | None) -> None:
    """Exit with an error message if nothing chooses tasks."""
    if not (tasks or dag or error):
        fail(["choose tasks: give TASK ids, --dag or --error"], EXIT_REJECTED)


def make_request(
    client: StackClient,
    tasks: list[str] | None,
    dag: str | None,
    job: str | None,
    error: str | None,
    dry_run: bool,
) -> dict[str, Any]:
    """Return the body of a request that chooses tasks. Exits if an id is unknown or not unique."""
    ids = [resolve_id(client, "task", task) for task in tasks or []]
    return {
        "task_ids": ids or None,
        "dag": dag,
        "job": job,
        "error_code": error,
        "dry_run": dry_run,
    }
