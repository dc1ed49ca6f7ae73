"""`trace trigger`: request a block range from a source, and wait for the results."""

from collections import Counter
from typing import Annotated, Any

import typer

from trace_etl.cli.client import StackClient, fail, session
from trace_etl.cli.options import (
    DEFAULT_HOME,
    DagArgument,
    HomeOption,
    JsonOption,
    RangeOption,
    parse_range,
)
from trace_etl.cli.output import format_count, format_job, print_json

TaskCounts = Counter[str]


def trigger(
    dag: DagArgument,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of a manual source job.")],
    blocks: RangeOption,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the DAG has no queued or running tasks.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Trigger a source job for a block range."""
    span = parse_range(blocks)
    body = {"dag": dag, "job": job, "start": span.start, "end": span.end}
    with session(home) as client:
        answer = client.post("/v1/triggers", body)
        if wait:
            wait_until_idle(client, dag)
    subject = f"{dag}.{job} for blocks {span.key}"
    if as_json:
        print_json(answer)
    elif wait:
        typer.echo(f"Done: {subject}.")
    elif answer["created"] and answer.get("deferred_by"):
        typer.echo(
            f"Recorded the trigger of {subject}: the job is paused by {answer['deferred_by']}. "
            "It runs when the job is resumed."
        )
    elif answer["created"]:
        if answer["ranges"] != [span.key]:
            new = ", ".join(answer["ranges"])
            typer.echo(f"Blocks triggered before are kept. New blocks: {new}.")
        if answer["retried"]:
            typer.echo(f"Retrying {format_count(answer['retried'], 'failed task')}.")
        typer.echo(f"Triggered {subject}. List its tasks with: trace tasks")
    elif answer["retried"]:
        count = format_count(answer["retried"], "failed task")
        typer.echo(f"{subject} was triggered before. Retrying {count}.")
    else:
        typer.echo(f"{subject} was triggered before; nothing to do.")


def wait_until_idle(client: StackClient, dag: str) -> None:
    """Print task counts until no task of the DAG is queued or running. Exits if a task failed."""
    from trace_etl.cli.tasks.watch import change_signals

    lost_before = list_lost_tasks(client, dag)
    printed = ""
    with change_signals(client, dag) as signals:
        for _ in signals:
            counts, pending = _count_tasks(client, dag)
            if (line := _format_counts(counts)) != printed:
                printed = line
                typer.echo(f"  {line}", err=True)
            if pending or counts["queued"] or counts["running"]:
                continue
            lost = list_lost_tasks(client, dag)
            if any(task["retry_at"] for task in lost.values()):
                continue
            if new := [task for task_id, task in lost.items() if task_id not in lost_before]:
                fail([format_lost_task(task) for task in new])
            return


def list_lost_tasks(client: StackClient, dag: str) -> dict[str, dict[str, Any]]:
    """List the failed and canceled tasks of a DAG by id, including those that will be retried."""
    tasks: list[dict[str, Any]] = []
    for status in ("Failed", "Canceled"):
        tasks += client.get("/v1/tasks", dag=dag, status=status, limit=1000)["items"]
    return {task["task_id"]: task for task in tasks}


def format_lost_task(task: dict[str, Any]) -> str:
    """Format the job, the partition and the reason of a failed or canceled task."""
    reason = task["reason"] or task["error_message"] or task["status"].lower()
    return f"{format_job(task)} of {task['partition_key']}: {reason}"


def _count_tasks(client: StackClient, dag: str) -> tuple[TaskCounts, int]:
    answer = client.get("/v1/tasks/summary", dag=dag)
    counts: TaskCounts = Counter()
    for job in answer["jobs"]:
        counts.update({name: count for name, count in job.items() if isinstance(count, int)})
    return counts, answer["pending_events"]


def _format_counts(counts: TaskCounts) -> str:
    names = ("queued", "running", "completed", "failed", "canceled")
    return ", ".join(f"{counts[name]} {name}" for name in names if counts[name]) or "no tasks yet"
