"""Print errors of the embedded stack."""

from typing import TYPE_CHECKING

import typer

from trace_etl.cli.output import print_json_error, prints_json

if TYPE_CHECKING:
    from trace_etl.lite.errors import StackError


def print_error(error: "StackError") -> typer.Exit:
    """Print an error with its remedy, as JSON if the command prints JSON. Returns the exit to raise."""
    if prints_json():
        print_json_error([{"code": error.code, "message": str(error), "remedy": error.remedy}])
        return typer.Exit(1)
    typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)
    if error.remedy:
        typer.echo(f"what to do: {error.remedy}", err=True)
    return typer.Exit(1)
