"""The program `trace`. Commands import what they need when they run, so that help is quick."""

import typer

from trace_etl.cli.admin import history, keys, users
from trace_etl.cli.dags import check, dags, jobs
from trace_etl.cli.data import batches, datasets, invalidations, lineage, query
from trace_etl.cli.stack import demo, devchain, lifecycle, prepare
from trace_etl.cli.tasks import backfills, outbox, pressure, tasks, watch

app = typer.Typer(
    name="trace",
    help="Move chain data through DAGs of jobs without losing a row.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for commands in (
    lifecycle,
    dags,
    tasks,
    jobs,
    backfills,
    watch,
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
