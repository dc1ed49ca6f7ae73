"""`trace up`, `trace down`, `trace status`: the embedded stack on this machine."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trace_etl.cli import output
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption

if TYPE_CHECKING:
    from trace_etl.lite.connection import Connection
    from trace_etl.lite.errors import StackError
    from trace_etl.lite.home import Home
    from trace_etl.lite.options import Options
    from trace_etl.lite.processes.log_view import Line
    from trace_etl.lite.status import Status

EXIT_DEGRADED = 1
EXIT_NOT_RUNNING = 3
_COLOURS = {"warning": typer.colors.YELLOW, "error": typer.colors.RED, "critical": typer.colors.RED}

PortOption = typer.Option(min=0, max=65535, help="0 picks any free one. Remembered.")


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(up)
    app.command()(down)
    app.command()(status)


def up(
    home: HomeOption = DEFAULT_HOME,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background.")] = False,
    rpc_url: Annotated[
        list[str] | None,
        typer.Option(help="A chain's JSON-RPC: URL or NAME=URL; repeatable. Remembered."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="How many worker processes.")] = 1,
    api_port: Annotated[int | None, PortOption] = None,
    internal_port: Annotated[int | None, PortOption] = None,
    query_port: Annotated[int | None, PortOption] = None,
    scheduler_port: Annotated[int | None, PortOption] = None,
    postgres_port: Annotated[int | None, PortOption] = None,
    as_json: JsonOption = False,
) -> None:
    """Start the stack: Postgres, dispatcher, workers, query, scheduler."""
    from trace_etl.lite.options import Options

    ports = {
        "api": api_port,
        "internal": internal_port,
        "query": query_port,
        "scheduler": scheduler_port,
        "postgres": postgres_port,
    }
    chosen = {name: port for name, port in ports.items() if port is not None}
    options = Options(tuple(rpc_url or ()), chosen, workers)
    if detach:
        _up_in_background(_home(home), options, as_json)
    else:
        _up_in_foreground(_home(home), options, as_json)


def down(
    home: HomeOption = DEFAULT_HOME,
    purge: Annotated[
        bool, typer.Option("--purge", help="Then delete its databases, objects, keys and logs.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --purge.")] = False,
) -> None:
    """Stop the stack."""
    from trace_etl.lite import stack
    from trace_etl.lite.errors import StackError

    place = _home(home)
    if purge and not yes:
        typer.confirm(f"Delete everything the stack keeps in {place.path}?", abort=True)
    try:
        was_running = stack.down(place)
        if purge:
            stack.purge(place)
    except StackError as refused:
        raise _failure(refused) from None
    typer.echo("Stopped." if was_running else f"Nothing was running in {place.path}.")
    if purge:
        typer.echo(f"Deleted what it kept in {place.path}.")


def status(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Show each part: exit code 0 if all is well, 1 if a part is not, 3 if nothing runs."""
    from trace_etl.lite import status as checks
    from trace_etl.lite.errors import StackError

    try:
        found = checks.check(_home(home))
    except StackError as refused:
        raise _failure(refused) from None
    if as_json:
        output.print_json(asdict(found))
    else:
        _print_status(found)
    codes = {"healthy": 0, "degraded": EXIT_DEGRADED, "stopped": EXIT_NOT_RUNNING}
    raise typer.Exit(codes[found.state])


def _up_in_background(home: "Home", options: "Options", as_json: bool) -> None:
    from trace_etl.lite.connection import read
    from trace_etl.lite.errors import AlreadyRunning, StackError
    from trace_etl.lite.processes import detached

    try:
        connection, seconds = detached.start(home, options)
    except AlreadyRunning as running:
        # What was asked for is already so, unless something else was asked for.
        if options != type(options)():
            raise _failure(running) from None
        typer.echo(f"{running}; {running.remedy}.", err=True)
        if as_json and (found := read(home.connection)):
            output.print_json(asdict(found))
        return
    except StackError as refused:
        raise _failure(refused) from None
    _print_up(connection, seconds, as_json, "stop with: trace down")


def _up_in_foreground(home: "Home", options: "Options", as_json: bool) -> None:
    from trace_etl.lite import stack
    from trace_etl.lite.errors import StackError

    def announce(connection: "Connection", seconds: float) -> None:
        _print_up(connection, seconds, as_json, "stop with Ctrl-C")

    try:
        stack.up(home, options, on_up=announce, show=_print_line)
    except StackError as refused:
        raise _failure(refused) from None


def _home(path: Path) -> "Home":
    from trace_etl.lite.home import Home

    return Home(path.expanduser().absolute())


def _failure(refused: "StackError") -> typer.Exit:
    typer.secho(f"error: {refused}", err=True, fg=typer.colors.RED)
    if refused.remedy:
        typer.echo(f"what to do: {refused.remedy}", err=True)
    return typer.Exit(1)


def _print_line(line: "Line") -> None:
    typer.secho(str(line), err=True, fg=_COLOURS.get(line.level))


def _print_up(connection: "Connection", seconds: float, as_json: bool, how_to_stop: str) -> None:
    if as_json:
        output.print_json(asdict(connection))
        return
    typer.echo(f"Trace is up in {seconds:.1f} s ({how_to_stop}).")
    typer.echo(f"  API    {connection.api_url}")
    typer.echo(f"  query  {connection.query_url}")
    typer.echo(f"  home   {connection.home}")


def _print_status(found: "Status") -> None:
    if found.state == "stopped":
        typer.echo(f"No stack runs in {found.home}. Start one with: trace up")
        if found.leftovers:
            pids = ", ".join(map(str, found.leftovers))
            typer.echo(f"Processes of a former run are left ({pids}). End them with: trace down")
        return
    headings = ["part", "state", "pid", "where", "since", "restarts", "spark"]
    rows = [
        [p.name, p.health, p.pid, p.where or None, output.local_time(p.since), p.restarts, p.spark]
        for p in found.parts
    ]
    output.print_rows(headings, rows, right=["pid", "restarts"])
    since = f", up since {output.local_time(found.started_at)}" if found.started_at else ""
    typer.echo(f"{found.state}: {found.home}, supervisor pid {found.supervisor_pid}{since}")
