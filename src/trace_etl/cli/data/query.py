"""`trace query`: query published datasets with SQL."""

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from trace_etl.cli.client import fail, session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import print_json, print_rows

_NUMBER_TYPES = ("INT", "DECIMAL", "DOUBLE", "FLOAT", "BIGNUM")


class RowFormat(StrEnum):
    """Output format of query rows."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT. - reads it from stdin.")],
    row_format: Annotated[
        RowFormat, typer.Option("--format", help="Output format.")
    ] = RowFormat.TABLE,
    limit: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Maximum number of rows.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Query published datasets with one SELECT.

    The query reads committed partitions only.
    """
    text = sys.stdin.read() if sql == "-" else sql
    if not text.strip():
        fail(["the SQL is empty: give one SELECT"])
    with session(home) as client:
        answer = client.query(text, limit)
    if as_json or row_format is RowFormat.JSON:
        print_json(answer)
    elif row_format is RowFormat.CSV:
        _print_csv(answer)
    else:
        print_result(answer)
    if answer["truncated"]:
        typer.echo(f"note: only the first {answer['row_count']} rows are shown", err=True)


def print_result(answer: dict[str, Any]) -> None:
    """Print the rows as a table."""
    columns: list[dict[str, str]] = answer["columns"]
    print_rows(
        [column["name"] for column in columns],
        answer["rows"],
        right=[c["name"] for c in columns if any(name in c["type"] for name in _NUMBER_TYPES)],
    )


def _print_csv(answer: dict[str, Any]) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(column["name"] for column in answer["columns"])
    writer.writerows(answer["rows"])
