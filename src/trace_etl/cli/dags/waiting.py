"""Waiting until a DAG has nothing left to do."""

from collections import Counter
from typing import Any

import typer

from trace_etl.cli.client import Client, fail
from trace_etl.cli.tasks.watch import signals

Tally = Counter[str]


def wait_until_settled(client: Client, dag: str) -> None:
    """Show how far a DAG is until nothing of it waits or runs. Ends the program on a failure."""
    before = _lost(client, dag)
    said = ""
    with signals(client, dag) as news:
        for _ in news:
            tally, pending = _tally(client, dag)
            if (words := _words(tally)) != said:
                said = words
                typer.echo(f"  {words}", err=True)
            if pending or tally["queued"] or tally["running"]:
                continue
            lost = _lost(client, dag)
            if any(task["retry_at"] for task in lost.values()):
                continue
            if new := [task for task_id, task in lost.items() if task_id not in before]:
                fail([_line(task) for task in new])
            return


def _tally(client: Client, dag: str) -> tuple[Tally, int]:
    answer = client.get("/v1/tasks/summary", dag=dag)
    tally: Tally = Counter()
    for job in answer["jobs"]:
        tally.update({name: count for name, count in job.items() if isinstance(count, int)})
    return tally, answer["pending_events"]


def _words(tally: Tally) -> str:
    names = ("queued", "running", "completed", "failed", "canceled")
    return ", ".join(f"{tally[name]} {name}" for name in names if tally[name]) or "nothing yet"


def _lost(client: Client, dag: str) -> dict[str, dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for status in ("Failed", "Canceled"):
        found += client.get("/v1/tasks", dag=dag, status=status, limit=1000)["items"]
    return {task["task_id"]: task for task in found}


def _line(task: dict[str, Any]) -> str:
    why = task["reason"] or task["error_message"] or task["status"].lower()
    return f"{task['dag']}.{task['job']} of {task['partition_key']}: {why}"
