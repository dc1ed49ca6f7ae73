"""The interactive prompt of `trace query`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import SqlLexer  # pyright: ignore[reportMissingTypeStubs]

from trace_etl.cli.client import list_errors
from trace_etl.cli.data.query.completion import COMMANDS, Schemas, SqlCompleter
from trace_etl.cli.data.query.query import print_table
from trace_etl.cli.output import print_rows
from trace_etl.client.stack_client import NotRunning, RequestRejected, ResultIncomplete, StackClient

_WELCOME = "SQL ends with a semicolon. Tab completes, \\d lists datasets, \\? helps, Ctrl-D quits."


class QueryPrompt:
    """Reads statements and commands, and prints their answers, until the end of the input."""

    def __init__(self, client: StackClient, home: Path, params: dict[str, Any] | None) -> None:
        self._client, self._params = client, params
        self._schemas = Schemas(client)
        self._commands: dict[str, Callable[[str], None]] = {
            "\\d": self._describe,
            "\\?": self._print_help,
        }

    def run(self) -> None:
        """Answer until Ctrl-D or \\q."""
        session: PromptSession[str] = PromptSession(
            history=open_history(),
            completer=SqlCompleter(self._schemas),
            complete_in_thread=True,
            lexer=PygmentsLexer(SqlLexer),
            key_bindings=_bind_enter(),
            multiline=True,
            prompt_continuation="     > ",
        )
        typer.echo(_WELCOME, err=True)
        while True:
            try:
                text = session.prompt("trace> ").strip()
            except KeyboardInterrupt:
                continue  # Ctrl-C drops the line
            except EOFError:
                return
            if text == "\\q":
                return
            if text:
                self._answer(text)

    def _answer(self, text: str) -> None:
        try:
            if text.startswith("\\"):
                self._run_command(text.rstrip(";"))
            else:
                print_table(self._client, text.rstrip(";"), self._params)
        except KeyboardInterrupt:
            typer.secho("canceled", err=True, fg=typer.colors.YELLOW)
        except RequestRejected as error:
            print_problem(error, text)
        except (NotRunning, ResultIncomplete) as error:
            typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)

    def _run_command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        if name not in self._commands:
            typer.secho(f"error: unknown command {name}; \\? lists them", err=True, fg="red")
            return
        self._commands[name](argument.strip())

    def _describe(self, name: str) -> None:
        if not name:
            print_rows(["dataset"], [[dataset] for dataset in self._schemas.datasets()])
            return
        columns = self._schemas.columns(name)
        rows = [[column.name, column.type, column.comment or ""] for column in columns]
        print_rows(["column", "type", "comment"], rows)

    def _print_help(self, _: str) -> None:
        for name, text in COMMANDS.items():
            typer.echo(f"{name:<4} {text}")


def print_problem(error: RequestRejected, sql: str) -> None:
    """Print the errors of a query, each with the line of the SQL that it is about."""
    lines = sql.splitlines()
    faults: list[dict[str, Any]] = error.problem.get("errors") or [{}]
    for message, fault in zip(list_errors(error), faults, strict=True):
        typer.secho(f"error: {message}", err=True, fg=typer.colors.RED)
        line, column = fault.get("line"), fault.get("column")
        if line is not None and line <= len(lines):
            typer.echo(f"  {lines[line - 1]}", err=True)
            if column is not None:
                typer.echo(f"  {' ' * (column - 1)}^", err=True)


def is_complete(text: str) -> bool:
    """Whether Enter ends a text: a command, an empty line, or SQL with its semicolon."""
    stripped = text.strip()
    return not stripped or stripped.startswith("\\") or stripped.endswith(";")


def _bind_enter() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return bindings


def open_history() -> History:
    """Open the history of earlier statements, which only this user can read."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / "trace" / "query_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()  # a home that cannot be written to
    return FileHistory(str(path))
