"""`trace cancel`: cancel tasks."""

from operator import itemgetter
from typing import Annotated, Any

import typer

from trace_etl.cli.client import EXIT_REJECTED, Answer, fail, session
from trace_etl.cli.ids import resolve_id
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import (
    Columns,
    format_count,
    format_id,
    format_job,
    print_answer,
    print_items,
)


def cancel(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TASK]...", help="Ids of tasks, or their beginnings."),
    ] = None,
    dag: Annotated[str | None, typer.Option(help="Tasks of this DAG.")] = None,
    job: Annotated[str | None, typer.Option(help="Tasks of this job; needs --dag.")] = None,
    status: Annotated[
        str | None,
        typer.Option(help="Queued, Running, or Failed for tasks that wait for their retry."),
    ] = None,
    error: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Tasks with this error, such as rpc_unreachable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be canceled and change nothing.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Cancel tasks.

    Choose them by id, DAG, job, status or error; several choices narrow each other. A waiting task ends
    immediately, a running one is asked to stop at its next heartbeat. All of them are canceled in one
    transaction.
    """
    if not (tasks or dag or error):
        fail(["choose tasks: give TASK ids, --dag or --error"], EXIT_REJECTED)
    is_single = (
        tasks is not None and len(tasks) == 1 and not (dag or job or status or error or dry_run)
    )
    with session(home) as client:
        ids = [resolve_id(client, "task", task) for task in tasks or []]
        if is_single:
            answer = client.post(f"/v1/tasks/{ids[0]}/cancel")
        else:
            body: dict[str, Any] = {"task_ids": ids or None, "dag": dag, "job": job}
            body |= {"error_code": error, "dry_run": dry_run}
            body["status"] = status.capitalize() if status else None
            answer = client.post("/v1/tasks/cancel", body)
    print_answer(answer, as_json, _print_canceled if is_single else _print_group)


_GROUPS: Columns = {
    "job": format_job,
    "status": itemgetter("status"),
    "error": itemgetter("error_code"),
    "tasks": itemgetter("tasks"),
}
_SKIPPED: Columns = {
    "not canceled": lambda item: format_id(item["task_id"]),
    "reason": itemgetter("reason"),
}


def _print_canceled(answer: Answer) -> None:
    if answer["status"] == "Running":
        typer.echo("Requested: the worker stops the task at its next heartbeat.")
    else:
        typer.echo("Canceled.")


def _print_group(answer: Answer) -> None:
    if not answer["groups"]:
        typer.echo("No tasks to cancel.")
    else:
        waiting = format_count(answer["canceled"], "waiting task")
        running = format_count(answer["stopping"], "running task")
        if answer["dry_run"]:
            typer.echo(f"Would cancel {waiting} and stop {running}.")
        else:
            typer.echo(f"Canceled {waiting}; stopping {running} at the next heartbeat.")
        print_items(answer["groups"], _GROUPS, right=["tasks"])
    if answer["skipped"]:
        print_items(answer["skipped"], _SKIPPED)
