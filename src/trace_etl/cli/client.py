"""One session of a command with the stack. Errors become lines on stderr and an exit code."""

from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn, cast

import typer

from trace_etl.cli.output import print_json_error, prints_json
from trace_etl.client.stack_client import (
    Answer,
    NotRunning,
    RequestRejected,
    ResultIncomplete,
    StackClient,
    TokenMissing,
    connect_home,
    open_connection,
    quote_segment,
    read_problem,
)

__all__ = [
    "EXIT_NOT_RUNNING",
    "EXIT_REJECTED",
    "Answer",
    "NotRunning",
    "RequestRejected",
    "StackClient",
    "fail",
    "list_errors",
    "open_connection",
    "quote_segment",
    "read_problem",
    "session",
]

EXIT_REJECTED = 1
EXIT_NOT_RUNNING = 3


@contextmanager
def session(home: Path, *, file: str = "") -> Generator[StackClient]:
    """Open a client for one command. On an error, print it to stderr and exit.

    `file` is the file that error positions refer to.
    """
    try:
        with closing(connect_home(home)) as client:
            yield client
    except NotRunning as error:
        fail([f"{error}; start it with `trace up`"], EXIT_NOT_RUNNING)
    except TokenMissing as error:
        fail([f"{error}; restart the stack with `trace down` and `trace up` to make a new one"])
    except RequestRejected as error:
        _reject(error, file)
    except ResultIncomplete as error:
        fail([f"{error}; run the query again"])


def fail(lines: list[str], code: int = EXIT_REJECTED) -> NoReturn:
    """Print one `error:` line for each message, or JSON if the command prints JSON, and exit."""
    if prints_json():
        print_json_error([{"message": line} for line in lines])
    else:
        for line in lines:
            typer.secho(f"error: {line}", err=True, fg=typer.colors.RED)
    raise typer.Exit(code)


def _reject(rejected: RequestRejected, file: str) -> NoReturn:
    """Print an error of the API and exit."""
    if not prints_json():
        fail(list_errors(rejected, file))
    problem = rejected.problem
    faults = cast(list[dict[str, Any]], problem.get("errors") or [{"message": str(rejected)}])
    status = {name: problem[name] for name in ("status", "code") if name in problem}
    print_json_error([{**status, **fault} for fault in faults])
    raise typer.Exit(EXIT_REJECTED)


def list_errors(rejected: RequestRejected, file: str = "") -> list[str]:
    """Format every error of the problem document, with file, line and column where known."""
    errors = cast(list[dict[str, Any]], rejected.problem.get("errors") or [])
    return [_format_error(error, file) for error in errors] or [str(rejected)]


def _format_error(error: Mapping[str, Any], file: str) -> str:
    position = [file] if file else []
    if error.get("line") is not None:
        position += [str(error[key]) for key in ("line", "column") if error.get(key) is not None]
    field = f"{error['field']}: " if error.get("field") else ""
    return f"{':'.join(position)}{': ' if position else ''}{field}{error['message']}"
