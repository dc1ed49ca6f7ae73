"""`trace prepare`: what makes later starts of Spark quicker, done once."""

import os
import time

import typer

from trace_etl.cli import output
from trace_etl.cli.options import JsonOption

EXIT_NOT_MADE = 1


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(prepare)


def prepare(as_json: JsonOption = False) -> None:
    """Make Spark start in half the time from now on. Once, in about a minute; Java 25 or newer."""
    from trace_etl.lite import jvm
    from trace_etl.lite.errors import NoJava
    from trace_etl.spark.errors import SparkNotStarted
    from trace_etl.spark.session import class_cache

    began = time.monotonic()
    try:
        java = jvm.choose(os.environ)
        if not as_json:
            typer.echo(f"preparing {java} ...", err=True)
        path = class_cache.make_class_cache(java.home)
    except (NoJava, SparkNotStarted, OSError) as error:
        typer.echo(f"trace prepare: {error}", err=True)
        raise typer.Exit(EXIT_NOT_MADE) from error
    seconds = time.monotonic() - began
    megabytes = round(path.stat().st_size / 2**20) if path is not None else 0
    if as_json:
        cache = str(path) if path is not None else None
        output.print_json({"java": str(java.home), "cache": cache, "megabytes": megabytes})
    elif path is None:
        typer.echo(f"nothing to prepare: {java} keeps no such cache, Java 25 and newer do")
    else:
        typer.echo(f"ready: {path} ({megabytes} MB), after {seconds:.0f} s")
