"""`trace jobs`, `trace job`: what a DAG's jobs are, and why one runs nothing."""

from typing import Annotated, Any

import typer

from trace_etl.cli.client import session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import local_time, print_fields, print_json, print_rows


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(jobs)
    app.command()(job)


def jobs(
    dag: Annotated[str | None, typer.Argument(metavar="[DAG]", help="Jobs of this DAG.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 200,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """List the jobs of the deployed DAGs."""
    with session(home) as client:
        answer = client.get("/v1/jobs", dag=dag, limit=limit)
    if as_json:
        print_json(answer)
        return
    print_rows(
        ["dag", "job", "activation", "operator", "runtime", "source", "paused by"],
        [
            [
                *(item[k] for k in ("dag", "job", "activation", "operator", "runtime")),
                item["schedule"] or item["source_kind"],
                _paused(item),
            ]
            for item in answer["items"]
        ],
    )
    if answer["next"]:
        typer.echo("There are more: raise --limit, or name a DAG.")


def job(
    dag: Annotated[str, typer.Argument(metavar="DAG", help="The DAG's name.")],
    name: Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")],
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """One job: its edges, what of it waits and runs, and why nothing does."""
    with session(home) as client:
        found = client.get(f"/v1/jobs/{dag}/{name}")
    if as_json:
        print_json(found)
        return
    print_fields(
        {
            "job": f"{found['dag']}.{found['job']}",
            "operator": f"{found['operator']} on {found['runtime']}",
            "reads": ", ".join(_edge(item, dag) for item in found["inputs"]) or None,
            "writes": ", ".join(_output(item) for item in found["outputs"]) or None,
            "priority": found["priority"],
            "running": found["running"],
            "queued": found["queued"],
            "oldest queued": local_time(found["oldest_queued_at"]) if found["queued"] else None,
            "paused by": _paused(found),
            "reason": found["reason"],
        }
    )
    if found["upstream"]:
        typer.echo()
        _print_upstream(found["upstream"])


def _paused(item: dict[str, Any]) -> str | None:
    """Who paused a job; a pause of its bulk work alone says so."""
    if item["paused_by"] or not item["bulk_paused_by"]:
        return item["paused_by"]
    return f"bulk work only: {item['bulk_paused_by']}"


def _edge(item: dict[str, Any], dag: str) -> str:
    there = "" if item["dag"] == dag else f"{item['dag']}."
    return f"{there}{item['job']}.{item['output']}"


def _output(item: dict[str, Any]) -> str:
    return f"{item['name']} as {item['published']}" if item["published"] else str(item["name"])


def _print_upstream(work: list[dict[str, Any]]) -> None:
    counts = ["queued", "running", "retrying", "failed"]
    print_rows(
        ["upstream", *counts, "paused by"],
        [
            [f"{item['dag']}.{item['job']}", *(item[k] for k in counts), item["paused_by"]]
            for item in work
        ],
        right=counts,
    )
