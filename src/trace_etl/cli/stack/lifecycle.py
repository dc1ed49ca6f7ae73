"""`trace up`, `trace down`, `trace status`: control the embedded stack on this machine."""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trace_etl.cli import output
from trace_etl.cli.client import EXIT_NOT_RUNNING
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption, WideOption
from trace_etl.cli.progress import show_counts
from trace_etl.cli.stack.errors import print_error
from trace_etl.client.stack_client import NotRunning, RequestRejected, TokenMissing, connect_home

if TYPE_CHECKING:
    from trace_etl.lite.connection import StackConnection
    from trace_etl.lite.home import Home
    from trace_etl.lite.options import Options
    from trace_etl.lite.processes.log_view import Line
    from trace_etl.lite.processes.record import ServiceRecord
    from trace_etl.lite.status import ProcessStatus, Status

EXIT_DEGRADED = 1
_COLOURS = {"warning": typer.colors.YELLOW, "error": typer.colors.RED, "critical": typer.colors.RED}

PortOption = typer.Option(
    min=0, max=65535, help="Port; 0 picks a free one. Saved for the next start."
)


def up(
    home: HomeOption = DEFAULT_HOME,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background.")] = False,
    rpc_url: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]URL",
            help="JSON-RPC URL of a chain. Repeatable. Saved for the next start.",
        ),
    ] = None,
    objects_url: Annotated[
        str | None,
        typer.Option(
            metavar="s3://BUCKET/PREFIX",
            help="Object store of a new stack. Default: a directory of its home.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Number of worker processes.")] = 1,
    api_port: Annotated[int | None, PortOption] = None,
    internal_port: Annotated[int | None, PortOption] = None,
    query_port: Annotated[int | None, PortOption] = None,
    scheduler_port: Annotated[int | None, PortOption] = None,
    console_port: Annotated[int | None, PortOption] = None,
    postgres_port: Annotated[int | None, PortOption] = None,
    as_json: JsonOption = False,
) -> None:
    """Start the stack.

    Starts Postgres, the Dispatcher, the workers, the sink, the Query Service, the scheduler
    and the web console.
    """
    from trace_etl.lite.home import Home
    from trace_etl.lite.options import Options

    ports = {
        "api": api_port,
        "internal": internal_port,
        "query": query_port,
        "scheduler": scheduler_port,
        "console": console_port,
        "postgres": postgres_port,
    }
    chosen = {name: port for name, port in ports.items() if port is not None}
    options = Options(tuple(rpc_url or ()), chosen, workers, objects_url)
    if detach:
        _start_in_background(Home.at(home), options, as_json)
    else:
        _run_in_foreground(Home.at(home), options, as_json)


def down(
    home: HomeOption = DEFAULT_HOME,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also delete its databases, objects, keys and logs.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation of --purge.")
    ] = False,
) -> None:
    """Stop the stack."""
    from trace_etl.lite import stack
    from trace_etl.lite.errors import StackError
    from trace_etl.lite.home import Home

    stack_home = Home.at(home)
    if purge and not yes:
        typer.confirm(f"Delete all data of the stack in {stack_home.path}?", abort=True)
    try:
        was_running = stack.down(stack_home)
        if purge:
            stack.purge(stack_home)
    except StackError as error:
        raise print_error(error) from None
    typer.echo("Stopped." if was_running else f"No stack was running in {stack_home.path}.")
    if purge:
        typer.echo(f"Deleted all data of the stack in {stack_home.path}.")


def status(
    home: HomeOption = DEFAULT_HOME, wide: WideOption = False, as_json: JsonOption = False
) -> None:
    """Show the processes of the stack.

    Exit codes: 0 if all are healthy, 1 if one is not, 3 if the stack is not running.
    """
    from trace_etl.lite import status as checks
    from trace_etl.lite.errors import StackError
    from trace_etl.lite.home import Home

    try:
        stack_status = checks.check(Home.at(home))
    except StackError as error:
        raise print_error(error) from None
    failed = _count_failed(home) if stack_status.state != "stopped" else None
    if as_json:
        output.print_json({**asdict(stack_status), "failed_tasks": failed})
    else:
        _print_status(stack_status)
        _print_failed(failed)
    codes = {"healthy": 0, "degraded": EXIT_DEGRADED, "stopped": EXIT_NOT_RUNNING}
    raise typer.Exit(codes[stack_status.state])


def _count_failed(home: Path) -> dict[str, int] | None:
    """Count the tasks that failed permanently, by job; None if the Dispatcher does not answer."""
    try:
        with closing(connect_home(home)) as client:
            jobs = client.get_all("/v1/jobs")["items"]
    except (NotRunning, RequestRejected, TokenMissing):
        return None
    return {output.format_job(job): job["failed"] for job in jobs if job["failed"]}


def _print_failed(failed: dict[str, int] | None) -> None:
    if failed:
        jobs = ", ".join(f"{job} {count}" for job, count in failed.items())
        typer.echo(f"Tasks that failed permanently: {jobs}. See `trace job DAG JOB`.")


def _start_in_background(home: "Home", options: "Options", as_json: bool) -> None:
    from trace_etl.lite.connection import read
    from trace_etl.lite.errors import AlreadyRunning, StackError
    from trace_etl.lite.processes import detached

    try:
        with show_counts() as report:
            connection, seconds = detached.start(
                home, options, lambda ready, count: report("processes ready", ready, count)
            )
    except AlreadyRunning as running:
        # Not an error, unless options were given: the running stack does not use them.
        if options != type(options)():
            raise print_error(running) from None
        typer.echo(f"{running}; {running.remedy}.", err=True)
        if as_json and (running_connection := read(home.connection)):
            output.print_json(asdict(running_connection))
        return
    except StackError as error:
        raise print_error(error) from None
    _print_up(connection, seconds, as_json, "stop with: trace down")


def _run_in_foreground(home: "Home", options: "Options", as_json: bool) -> None:
    from trace_etl.lite import stack
    from trace_etl.lite.errors import StackError

    def announce(connection: "StackConnection", seconds: float) -> None:
        _print_up(connection, seconds, as_json, "stop with Ctrl-C")

    try:
        stack.up(home, options, on_up=announce, show=_print_line)
    except StackError as error:
        raise print_error(error) from None


def _print_line(line: "Line") -> None:
    typer.secho(str(line), err=True, fg=_COLOURS.get(line.level))


def _print_up(
    connection: "StackConnection", seconds: float, as_json: bool, how_to_stop: str
) -> None:
    from pathlib import Path

    from trace_etl.lite.home import Home
    from trace_etl.lite.processes import record

    services = record.read(Home(Path(connection.home)).record)
    print_warnings(services)
    if as_json:
        output.print_json(asdict(connection))
        return
    typer.echo(f"Trace is up in {seconds:.1f} s ({how_to_stop}).")
    typer.echo(f"  API    {connection.api_url}")
    typer.echo(f"  query  {connection.query_url}")
    typer.echo(f"  home   {connection.home}")
    if connection.console_url:
        typer.echo(f"  open   {_make_link(connection)}")


def _make_link(connection: "StackConnection") -> str:
    """Return a one-time link to the console, or its plain address if it gives none."""
    from trace_etl.cli.stack.console import create_link

    try:
        return create_link(connection)
    except (NotRunning, RequestRejected, TokenMissing):
        return f"{connection.console_url} (log in with the link of `trace console`)"


def print_warnings(services: "Iterable[ServiceRecord | ProcessStatus]") -> None:
    """Say what the services can use beyond their own files, and why."""
    from trace_etl.lite import isolation

    if any(service.isolation == "none" for service in services):
        typer.echo(isolation.explain_missing(), err=True)
    for warning in dict.fromkeys(service.warning for service in services if service.warning):
        typer.echo(warning, err=True)


def _print_status(status: "Status") -> None:
    if status.state == "stopped":
        typer.echo(f"No stack runs in {status.home}. Start it with: trace up")
        if status.orphans:
            pids = ", ".join(map(str, status.orphans))
            typer.echo(
                f"Orphans of an earlier run still exist ({pids}). Stop them with: trace down"
            )
        return
    headings = ["process", "state", "pid", "address", "since", "restarts", "spark", "isolation"]
    rows = [
        [
            *(p.name, p.health, p.pid, p.where or None, output.format_time(p.since)),
            *(p.restarts, p.spark, p.isolation),
        ]
        for p in status.parts
    ]
    output.print_rows(headings, rows, right=["pid", "restarts"], wide=["since", "isolation"])
    print_warnings(status.parts)
    fields = {
        "state": status.state,
        "home": status.home,
        "supervisor pid": status.supervisor_pid,
        "up since": status.started_at and output.format_time(status.started_at),
    }
    output.print_fields(fields)
