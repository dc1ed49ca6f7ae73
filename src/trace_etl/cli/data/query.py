"""`trace query`: SQL over the published datasets."""

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from trace_etl.cli.client import fail, session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import print_json, print_rows

_NUMBERS = ("INT", "DECIMAL", "DOUBLE", "FLOAT", "BIGNUM")


class Format(StrEnum):
    """How to print rows."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(query)


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT; - reads it from stdin.")],
    form: Annotated[Format, typer.Option("--format", help="How to print rows.")] = Format.TABLE,
    limit: Annotated[int | None, typer.Option(min=1, max=10_000, help="Rows at most.")] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Run one SELECT over the committed partitions of published datasets."""
    text = sys.stdin.read() if sql == "-" else sql
    if not text.strip():
        fail(["there is no SQL to run"])
    with session(home) as client:
        answer = client.query(text, limit)
    if as_json or form is Format.JSON:
        print_json(answer)
    elif form is Format.CSV:
        _print_csv(answer)
    else:
        print_result(answer)
    if answer["truncated"]:
        typer.echo(f"note: only the first {answer['row_count']} rows are shown", err=True)


def print_result(answer: dict[str, Any]) -> None:
    """Rows as a table, numbers to the right."""
    columns: list[dict[str, str]] = answer["columns"]
    print_rows(
        [column["name"] for column in columns],
        answer["rows"],
        right=[c["name"] for c in columns if any(word in c["type"] for word in _NUMBERS)],
    )


def _print_csv(answer: dict[str, Any]) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(column["name"] for column in answer["columns"])
    writer.writerows(answer["rows"])
