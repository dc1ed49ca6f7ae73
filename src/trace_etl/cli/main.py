"""The program `trace`. Commands import their dependencies when they run, to keep --help fast."""

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from trace_etl.cli.admin import audit, history, keys, users
from trace_etl.cli.dags import (
    check,
    deploy,
    functions,
    jobs,
    operators,
    pauses,
    removal,
    runtimes,
    triggers,
)
from trace_etl.cli.data import batches, changes, checks, datasets, invalidations, lineage, storage
from trace_etl.cli.data.proof import certify, verify
from trace_etl.cli.data.query import query
from trace_etl.cli.output import print_json_error
from trace_etl.cli.stack import backups, console, demo, devchain, doctor, lifecycle, prepare, worker
from trace_etl.cli.tasks import (
    backfills,
    cancellations,
    logs,
    notifications,
    outbox,
    retries,
    tasks,
    watch,
)
from trace_etl.cli.views import graph, overview, partition_map

app = typer.Typer(
    name="trace",
    help="Run DAGs that turn blockchain data into versioned datasets.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def version() -> None:
    """Print the version."""
    from trace_etl import __version__

    typer.echo(__version__)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        version()
        raise typer.Exit


@app.callback()
def _read_options(  # pyright: ignore[reportUnusedFunction]
    is_asked: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Read the options that come before a command."""


_COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Stack": (
        lifecycle.up,
        lifecycle.down,
        lifecycle.status,
        console.console,
        overview.overview,
        backups.backup,
        backups.restore,
        demo.demo,
        prepare.prepare,
        worker.worker,
        doctor.doctor,
    ),
    "DAGs": (
        check.check,
        deploy.plan,
        deploy.deploy,
        deploy.rollout,
        deploy.rollback,
        deploy.promote,
        removal.remove,
        deploy.dags,
        graph.graph,
        graph.versions,
        jobs.jobs,
        jobs.job,
        runtimes.runtimes,
        operators.operators,
        triggers.trigger,
        pauses.pause,
        pauses.resume,
        pauses.pressure,
        deploy.schema,
    ),
    "Tasks": (
        tasks.tasks,
        tasks.task,
        logs.logs,
        cancellations.cancel,
        retries.retry,
        overview.failures,
        backfills.backfill,
        notifications.notifications,
        watch.watch,
    ),
    "Data": (
        datasets.datasets,
        datasets.dataset,
        partition_map.partition_map,
        query.query,
        lineage.lineage,
        changes.changes,
        verify.verify,
        certify.certify,
        checks.checks,
        checks.accept,
        invalidations.invalidate,
        invalidations.invalidations,
    ),
    "Admin": (audit.audit, history.check_history, version),
}
_NAMES = {partition_map.partition_map: "map"}
_GROUPS = {
    "udf": ("DAGs", functions.group),
    "backfills": ("Tasks", backfills.group),
    "outbox": ("Tasks", outbox.group),
    "batches": ("Data", batches.group),
    "storage": ("Data", storage.group),
    "users": ("Admin", users.group),
    "keys": ("Admin", keys.group),
}

for panel, commands in _COMMANDS.items():
    for command in commands:
        name = _NAMES.get(command)
        app.command(name, rich_help_panel=panel)(command)
for name, (panel, group) in _GROUPS.items():
    app.add_typer(group, name=name, rich_help_panel=panel)
app.command(
    rich_help_panel="Stack", add_help_option=False, context_settings=devchain.PASS_ARGUMENTS_ON
)(devchain.devchain)


def main() -> None:
    """Run the program. With --json, invalid arguments are reported as JSON too."""
    if "--json" not in sys.argv[1:]:
        app()
        return
    try:
        code = app(standalone_mode=False)
    except typer.TyperException as error:
        print_json_error([{"code": "usage", "message": error.format_message()}])
        code = error.exit_code
    sys.exit(code)
