"""`trace cancel`: cancel tasks."""

from operator import itemgetter
from typing import Annotated

import typer

from trace_etl.cli.client import Answer, session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import (
    Columns,
    format_count,
    format_id,
    format_job,
    print_answer,
    print_items,
)
from trace_etl.cli.tasks import task_choice


def cancel(
    tasks: task_choice.TasksArgument = None,
    dag: task_choice.DagChoice = None,
    job: task_choice.JobChoice = None,
    status: Annotated[
        str | None,
        typer.Option(help="Queued, Running, or Failed for tasks that wait for their retry."),
    ] = None,
    error: task_choice.ErrorChoice = None,
    dry_run: task_choice.DryRunOption = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Cancel tasks.

    Choose them by id, DAG, job, status or error; several choices narrow each other. A waiting task ends
    immediately, a running one is asked to stop at its next heartbeat. All of them are canceled in one
    transaction.
    """
    task_choice.require_choice(tasks, dag, error)
    is_single = (
        tasks is not None and len(tasks) == 1 and not (dag or job or status or error or dry_run)
    )
    with session(home) as client:
        body = task_choice.make_request(client, tasks, dag, job, error, dry_run)
        if is_single:
            answer = client.post(f"/v1/tasks/{body['task_ids'][0]}/cancel")
        else:
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
