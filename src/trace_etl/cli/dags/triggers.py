"""`trace trigger`: make a source emit an event, and wait for the tasks that it causes."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from trace_etl.cli.client import StackClient, fail, session
from trace_etl.cli.options import (
    DEFAULT_HOME,
    DagArgument,
    HomeOption,
    JsonOption,
    parse_range,
)
from trace_etl.cli.output import format_count, format_job, print_json
from trace_etl.cli.progress import show_counts


def trigger(
    dag: DagArgument,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of a manual or cron source job.")],
    blocks: Annotated[
        str | None, typer.Option("--range", metavar="START-END", help="Blocks, both inclusive.")
    ] = None,
    cursor: Annotated[
        int | None, typer.Option(help="A cursor: everything up to it is new.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The key of a partition, such as a name.")] = None,
    payload: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="JSON for the tasks, or @FILE. Alone, it is an event."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="cron: time of the tick, as ISO 8601. Default: now."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the tasks that the trigger causes in its DAG.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Trigger a manual or cron source job."""
    body: dict[str, Any] = {"dag": dag, "job": job}
    if blocks is not None:
        span = parse_range(blocks)
        body |= {"start": span.start, "end": span.end}
    body |= {"cursor": cursor, "partition_key": key, "scheduled_time": _parse_time(at)}
    body["payload"] = None if payload is None else _parse_payload(payload)
    with session(home) as client:
        answer = client.post("/v1/triggers", {k: v for k, v in body.items() if v is not None})
        if wait:
            task_ids = [*answer["retried_task_ids"], *filter(None, [answer["task_id"]])]
            roots = {"event_ids": answer["event_ids"], "task_ids": task_ids}
            wait_for_work(client, dag, roots)
    if as_json:
        print_json(answer)
        return
    subject = f"{dag}.{job} for {_describe_scope(answer)}"
    for line in [f"Done: {subject}."] if wait else _describe_answer(answer, subject):
        typer.echo(line)


def _parse_time(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{error}; write 2026-11-18T04:00:00Z", param_hint="--at"
        ) from error
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat()


def _parse_payload(text: str) -> Any:
    try:
        return json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(
            f"is not JSON: {error}; write JSON, or @FILE", param_hint="--payload"
        ) from error


def _describe_scope(answer: dict[str, Any]) -> str:
    from trace_etl.model.scope import Range

    key = answer["partition_key"]
    if key is None:
        return f"cursor {answer['cursor']}"
    return f"blocks {key}" if Range.from_key(key) else key


def _describe_answer(answer: dict[str, Any], subject: str) -> list[str]:
    count = format_count(answer["retried"], "failed or canceled task")
    if answer["created"] and answer.get("deferred_by"):
        return [
            f"Recorded the trigger of {subject}: the job is paused by {answer['deferred_by']}. "
            "It runs when the job is resumed."
        ]
    if not answer["created"] and answer["retried"]:
        return [f"{subject} was triggered before. Retrying {count}."]
    if not answer["created"]:
        return [f"{subject} was triggered before; nothing to do."]
    lines: list[str] = []
    if answer["ranges"] and answer["ranges"] != [answer["partition_key"]]:
        lines.append(
            f"Blocks triggered before are kept. New blocks: {', '.join(answer['ranges'])}."
        )
    if answer["retried"]:
        lines.append(f"Retrying {count}.")
    return [*lines, f"Triggered {subject}. List its tasks with: trace tasks"]


_WAITING = ("queued", "running", "retrying")
_ENDED = ("completed", "failed", "canceled")


def wait_for_work(client: StackClient, dag: str, roots: dict[str, Any]) -> None:
    """Show progress until everything that the roots caused has ended. Exits if a task failed."""
    from trace_etl.cli.tasks.watch import change_signals

    with show_counts() as report, change_signals(client, dag) as signals:
        for _ in signals:
            work = client.post("/v1/progress", {"dag": dag, **roots})
            ended = sum(work[name] for name in _ENDED)
            waiting = sum(work[name] for name in (*_WAITING, "unrouted"))
            report("tasks", ended, ended + waiting, _format_counts(work))
            if waiting:
                continue
            if work["failures"]:
                fail([format_lost_task(task) for task in work["failures"]])
            if work["deferred"]:
                waiting = format_count(work["deferred"], "event")
                fail(
                    [
                        f"{waiting} wait until a paused job is resumed; `trace pressure` lists the pauses"
                    ]
                )
            return


def list_lost_tasks(client: StackClient, dag: str) -> dict[str, dict[str, Any]]:
    """List the failed and canceled tasks of a DAG by id, including those that will be retried."""
    tasks: list[dict[str, Any]] = []
    for status in ("Failed", "Canceled"):
        tasks += client.get("/v1/tasks", dag=dag, status=status, limit=1000)["items"]
    return {task["task_id"]: task for task in tasks}


def format_lost_task(task: dict[str, Any]) -> str:
    """Format the job, the partition and the reason of a failed or canceled task."""
    reason = task.get("reason") or task["error_message"] or task["status"].lower()
    return f"{format_job(task)} of {task['partition_key']}: {reason}"


def _format_counts(work: dict[str, Any]) -> str:
    names = (*_WAITING, "failed", "canceled")
    return ", ".join(f"{work[name]} {name}" for name in names if work[name])
