"""`trace retry`: retry failed tasks."""

from operator import itemgetter
from typing import Annotated, Any

import typer

from trace_etl.cli.client import EXIT_REJECTED, Answer, fail, session
from trace_etl.cli.ids import resolve_id
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption, WideOption
from trace_etl.cli.output import (
    Columns,
    format_count,
    format_id,
    format_job,
    print_answer,
    print_items,
)


def retry(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TASK]...", help="Ids of failed tasks, or their beginnings."),
    ] = None,
    dag: Annotated[str | None, typer.Option(help="Failed tasks of this DAG.")] = None,
    job: Annotated[str | None, typer.Option(help="Failed tasks of this job; needs --dag.")] = None,
    error: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Failed tasks with this error, such as rpc_unreachable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be retried and change nothing.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Retry failed tasks.

    Choose them by id, DAG, job or error; several choices narrow each other. Every chosen task gets as many
    attempts as a new task. All of them are retried in one transaction.
    """
    if not (tasks or dag or error):
        fail(["choose tasks: give TASK ids, --dag or --error"], EXIT_REJECTED)
    body: dict[str, Any] = {"dag": dag, "job": job, "error_code": error, "dry_run": dry_run}
    with session(home) as client:
        body["task_ids"] = [resolve_id(client, "task", task) for task in tasks or []] or None
        answer = client.post("/v1/tasks/retry", body)
    print_answer(answer, as_json, _print_retried)


_GROUPS: Columns = {
    "job": format_job,
    "error": itemgetter("error_code"),
    "tasks": itemgetter("tasks"),
}
_SKIPPED: Columns = {
    "not retried": lambda item: format_id(item["task_id"]),
    "reason": itemgetter("reason"),
}


def _print_retried(answer: Answer) -> None:
    count = format_count(answer["retried"], "failed task")
    if not answer["retried"]:
        typer.echo("No failed tasks to retry.")
    else:
        typer.echo(f"Would retry {count}." if answer["dry_run"] else f"Retrying {count}.")
        print_items(answer["groups"], _GROUPS, right=["tasks"])
    if answer["skipped"]:
        print_items(answer["skipped"], _SKIPPED)
        if (rest := answer["skipped_count"] - len(answer["skipped"])) > 0:
            typer.echo(f"… and {rest:,} more that are not retried.")
