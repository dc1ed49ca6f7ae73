"""Fetch a list from the API and print it as a table or as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from trace_etl.cli.client import Answer, session
from trace_etl.cli.output import Columns, print_items, print_json


@dataclass(frozen=True)
class ListTable:
    """How a list looks as a table."""

    columns: Columns
    empty: str
    """The sentence to print when the list is empty."""
    right: Sequence[str] = ()
    wide: Sequence[str] = ()
    """The columns that only --wide shows."""
    next_command: str = ""
    """The command that prints the next page, if it has --after."""


def print_list(
    home: Path,
    path: str,
    table: ListTable,
    *,
    as_json: bool,
    all_pages: bool = False,
    **params: object,
) -> None:
    """Fetch one page of a list, or all pages, and print it."""
    with session(home) as client:
        answer = (client.get_all if all_pages else client.get)(path, **params)
    print_list_answer(answer, table, as_json=as_json)


def print_list_answer(answer: Answer, table: ListTable, *, as_json: bool) -> None:
    """Print a page of a list."""
    if as_json:
        print_json(answer)
        return
    if not answer["items"]:
        typer.echo(table.empty)
        return
    print_items(answer["items"], table.columns, right=table.right, wide=table.wide)
    if after := answer.get("next"):
        command = f"{table.next_command} --after {after}" if table.next_command else "raise --limit"
        typer.echo(f"More: {command}", err=True)
