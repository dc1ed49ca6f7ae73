"""The program `trace`. Commands import what they need when they run, so that help is quick."""

import typer

from trace_etl.cli import (
    backfills,
    batches,
    changes,
    check,
    dags,
    datasets,
    demo,
    devchain,
    history,
    invalidations,
    jobs,
    keys,
    lineage,
    outbox,
    prepare,
    pressure,
    query,
    stack,
    tasks,
    users,
)

app = typer.Typer(
    name="trace",
    help="Move chain data through DAGs of jobs without losing a row.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for commands in (
    stack,
    dags,
    tasks,
    jobs,
    backfills,
    changes,
    check,
    pressure,
    datasets,
    batches,
    lineage,
    invalidations,
    query,
    outbox,
    users,
    keys,
    history,
    prepare,
    devchain,
    demo,
):
    commands.register(app)


@app.command()
def version() -> None:
    """Print the version."""
    from trace_etl import __version__

    typer.echo(__version__)


def main() -> None:
    """Run the program."""
    app()
