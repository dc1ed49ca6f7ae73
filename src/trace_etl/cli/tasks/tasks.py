"""`trace tasks`, `trace task`, `trace cancel`."""

from typing import Annotated, Any

import typer

from trace_etl.cli.client import session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import local_time, print_fields, print_json, print_rows, took

TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="The task's id.")]
_LINE = 100
_ENDLESS = 1_000_000


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(tasks)
    app.command()(task)
    app.command()(cancel)


def tasks(
    dag: Annotated[str | None, typer.Option(help="Only of this DAG.")] = None,
    job: Annotated[str | None, typer.Option(help="Only of this job.")] = None,
    status: Annotated[
        str | None, typer.Option(help="Queued, Running, Completed, Failed or Canceled.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    after: Annotated[
        str | None, typer.Option(help="Continue a listing: the `next` of the page before.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """List tasks, newest first, and why the waiting ones wait."""
    wanted = status.capitalize() if status else None
    with session(home) as client:
        answer = client.get("/v1/tasks", dag=dag, job=job, status=wanted, limit=limit, after=after)
    if as_json:
        print_json(answer)
    else:
        _print_tasks(answer)


def task(
    task_id: TaskArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False
) -> None:
    """Show one task and all its attempts."""
    with session(home) as client:
        answer = client.get(f"/v1/tasks/{_path_part(task_id)}")
    if as_json:
        print_json(answer)
    else:
        _print_task(answer)


def cancel(
    task_id: TaskArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False
) -> None:
    """Cancel a waiting task, or ask a running one to stop."""
    with session(home) as client:
        answer = client.post(f"/v1/tasks/{_path_part(task_id)}/cancel")
    if as_json:
        print_json(answer)
    elif answer["status"] == "Running":
        typer.echo("Asked to stop; its worker learns of it with the next heartbeat.")
    else:
        typer.echo("Canceled.")


def _path_part(word: str) -> str:
    from urllib.parse import quote

    return quote(word, safe="")


def _print_tasks(answer: dict[str, Any]) -> None:
    items: list[dict[str, Any]] = answer["items"]
    if not items:
        typer.echo("No tasks.")
        return
    print_rows(
        ["task", "job", "blocks", "status", "attempt", "worker", "took", "why"],
        [
            [
                item["task_id"],
                f"{item['dag']}.{item['job']}",
                item["partition_key"],
                item["status"],
                _attempt(item, "/"),
                item["worker_id"],
                _took(item),
                _why(item),
            ]
            for item in items
        ],
    )
    if answer.get("next"):
        typer.echo(f"More: trace tasks --after {answer['next']}", err=True)


def _attempt(item: dict[str, Any], of: str) -> str:
    # A source that always runs is started again for ever.
    endless = item["max_attempts"] >= _ENDLESS
    return str(item["attempt"]) if endless else f"{item['attempt']}{of}{item['max_attempts']}"


def _took(item: dict[str, Any]) -> str:
    is_over = item["status"] != "Running"
    return (
        "-"
        if is_over and not item["finished_at"]
        else took(item["started_at"], item["finished_at"])
    )


def _why(item: dict[str, Any]) -> str:
    words = " ".join(str(item["reason"] or item["error_message"] or "").split())
    return words if len(words) <= _LINE else f"{words[: _LINE - 1]}…"


def _print_task(item: dict[str, Any]) -> None:
    print_fields(
        {
            "task": item["task_id"],
            "job": f"{item['dag']}.{item['job']}",
            "operator": item["operator"],
            "runtime": item["runtime"],
            "blocks": item["partition_key"],
            "status": item["status"],
            "why": item["reason"],
            "attempt": _attempt(item, " of "),
            "worker": item["worker_id"],
            "created": local_time(item["created_at"]),
            "started": item["started_at"] and local_time(item["started_at"]),
            "finished": item["finished_at"] and local_time(item["finished_at"]),
            "retry at": item["retry_at"] and local_time(item["retry_at"]),
            "error": item["error_message"],
        }
    )
    attempts: list[dict[str, Any]] = item["attempts"]
    if attempts:
        print_rows(
            ["attempt", "outcome", "worker", "started", "took", "why"],
            [
                [
                    a["attempt"],
                    a["outcome"],
                    a["worker_id"],
                    local_time(a["started_at"]),
                    took(a["started_at"], a["ended_at"]),
                    a["error_message"] or a["cause"],
                ]
                for a in attempts
            ],
        )
