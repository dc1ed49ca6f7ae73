"""`trace remove`: remove a DAG."""

from typing import Annotated, Any

import typer

from trace_etl.cli.client import quote_segment, session
from trace_etl.cli.dags.deploy import BreakingOption
from trace_etl.cli.options import DEFAULT_HOME, DagArgument, HomeOption, JsonOption
from trace_etl.cli.output import format_count, format_number, format_size, print_json

_TIMEOUT = 600.0


def remove(
    dag: DagArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; change nothing.")
    ] = False,
    keep_data: Annotated[
        bool,
        typer.Option(
            "--keep-data", help="Keep its data: deploying the DAG again continues with it."
        ),
    ] = False,
    allow_breaking: BreakingOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Remove a DAG.

    Cancels its tasks, frees its published names and deletes its data after the retention of unused
    objects. Refused if jobs of other DAGs read its datasets. Removing it again changes nothing.
    """
    path = f"/v1/dags/{quote_segment(dag)}/remove"
    body = {"keep_data": keep_data, "allow_breaking": allow_breaking}
    with session(home) as client:
        planned = client.post(path, {**body, "dry_run": True}, timeout=_TIMEOUT)
        if dry_run:
            _print(planned, keep_data, as_json, is_preview=True)
            return
        if not yes and planned["jobs"]:
            typer.echo(_describe(planned, keep_data), err=True)
            typer.confirm(f"Remove {dag}?", abort=True, err=True)
        answer = client.post(path, body, timeout=_TIMEOUT)
    _print(answer, keep_data, as_json, is_preview=False)


def _print(answer: dict[str, Any], keep_data: bool, as_json: bool, *, is_preview: bool) -> None:
    if as_json:
        print_json(answer)
    elif is_preview and answer["jobs"]:
        typer.echo(f"Would remove {_describe(answer, keep_data)}")
        for name, jobs in answer["readers"].items():
            typer.echo(f"Refused: {name} is read by {', '.join(jobs)}")
    elif answer["removed"]:
        typer.echo(f"Removed {_describe(answer, keep_data)}")
    else:
        typer.echo(f"{answer['dag']} was removed already.")


def _describe(answer: dict[str, Any], keep_data: bool) -> str:
    data = (
        f"{format_count(answer['partitions'], 'partition')} ({format_number(answer['row_count'])} "
        f"rows, {format_size(answer['byte_count'])})"
    )
    names = f", the names {', '.join(answer['names'])}" if answer["names"] else ""
    return (
        f"{answer['dag']}: {format_count(len(answer['jobs']), 'job')}, "
        f"{format_count(answer['tasks'], 'waiting or running task')}{names}; {data} "
        f"{'kept' if keep_data else 'deleted after the retention of unused objects'}."
    )
