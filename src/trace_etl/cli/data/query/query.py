"""`trace query`: query published datasets with SQL."""

import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trace_etl.cli.client import fail, session
from trace_etl.cli.data.query.query_params import ParamOption, parse_params
from trace_etl.cli.data.query.result_files import print_pieces, save_pieces
from trace_etl.cli.data.query.result_table import print_result
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption, WideOption
from trace_etl.cli.output import format_count, format_duration, format_size
from trace_etl.cli.progress import show_bytes, show_counts

if TYPE_CHECKING:
    from trace_etl.client.stack_client import StackClient

_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".arrow": "arrow"}


class RowFormat(StrEnum):
    """Output format of query rows."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"
    ARROW = "arrow"

    @property
    def is_binary(self) -> bool:
        return self in (RowFormat.PARQUET, RowFormat.ARROW)


def query(
    sql: Annotated[
        str | None,
        typer.Argument(
            metavar="[SQL]",
            help="One SELECT. - reads it from stdin. Without it, a prompt opens in a terminal.",
        ),
    ] = None,
    row_format: Annotated[
        RowFormat | None,
        typer.Option("--format", help="Output format. Default: from FILE's suffix, else table."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the result to a file."),
    ] = None,
    param: ParamOption = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of rows. Default: 10,000 in a table, else all."),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Query published datasets with one SELECT.

    The query reads committed partitions only. Formats other than table are streamed: they have
    all rows. A file appears when it is complete. Ctrl-C stops the query.
    """
    text = sys.stdin.read() if sql == "-" or (sql is None and not sys.stdin.isatty()) else sql
    form = RowFormat.JSON if as_json else row_format or _guess_format(output)
    params = parse_params(param)
    if text is None:
        _open_prompt(home, params)
        return
    if not text.strip():
        fail(["the SQL is empty: give one SELECT"])
    if form.is_binary and output is None and sys.stdout.isatty():
        fail([f"{form} is not text; write it to a file with -o FILE"])
    with session(home) as client:
        if form is RowFormat.TABLE:
            print_table(client, text, params, limit)
        else:
            _write(client, form, output, sql=text, params=params, limit=limit)


def print_table(
    client: "StackClient", sql: str, params: dict[str, Any] | None, limit: int | None = None
) -> None:
    """Run a query, print its rows as a table, and their number and the time to stderr."""
    started = time.monotonic()
    with show_counts() as report:
        report("running", 0, 0)
        answer = client.query(sql, limit, params=params)
    elapsed = time.monotonic() - started
    print_result(answer)
    typer.echo(
        f"{format_count(answer['row_count'], 'row')} in {format_duration(elapsed)}", err=True
    )
    if answer["truncated"]:
        rest = "--format csv, json, parquet or arrow has all rows"
        typer.echo(f"note: only the first {answer['row_count']:,} rows are shown; {rest}", err=True)


def _write(client: "StackClient", form: RowFormat, output: Path | None, **request: Any) -> None:
    started = time.monotonic()
    with client.stream(**request, format=form) as body:
        pieces = _end_line(body.pieces()) if form is RowFormat.JSON else body.pieces()
        if output is None:
            print_pieces(pieces)
            return
        with show_bytes() as report:
            size = save_pieces(output, pieces, report)
    elapsed = format_duration(time.monotonic() - started)
    typer.echo(f"Wrote {format_size(size)} to {output} in {elapsed}", err=True)


def _end_line(pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield from pieces
    yield b"\n"


def _guess_format(output: Path | None) -> RowFormat:
    if output is None:
        return RowFormat.TABLE
    form = _SUFFIXES.get(output.suffix.lower())
    if form is None:
        fail([f"{output}: give --format, or a name that ends with {', '.join(_SUFFIXES)}"])
    return RowFormat(form)


def _open_prompt(home: Path, params: dict[str, Any] | None) -> None:
    from trace_etl.cli.data.query.prompt import QueryPrompt

    with session(home) as client:
        QueryPrompt(client, home, params).run()
