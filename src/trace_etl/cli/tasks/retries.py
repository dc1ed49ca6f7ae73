"""`trace retry`: retry failed tasks."""

from operator import itemgetter

import typer

from trace_etl.cli.client import Answer, session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption, WideOption
from trace_etl.cli.output import (
    Columns,
    format_count,
    format_id,
    format_job,
    print_answer,
    print_items,
)
from trace_etl.cli.tasks import task_choice


def retry(
    tasks: task_choice.TasksArgument = None,
    dag: task_choice.DagChoice = None,
    job: task_choice.JobChoice = None,
    error: task_choice.ErrorChoice = None,
    dry_run: task_choice.DryRunOption = False,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Retry failed tasks.

    Choose them by id, DAG, job or error; several choices narrow each other. Every chosen task gets as many
    attempts as a new task. All of them are retried in one transaction.
    """
    task_choice.require_choice(tasks, dag, error)
    with session(home) as client:
        body = task_choice.make_request(client, tasks, dag, job, error, dry_run)
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
