"""`trace backup`, `trace restore`: save a stack and make a new one from it."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import format_count, format_number, format_size, print_json
from trace_etl.cli.progress import show_bytes
from trace_etl.cli.stack.errors import print_error

if TYPE_CHECKING:
    from trace_etl.lite.backup.manifest import BackupManifest


def backup(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET", help="New directory, or new file if its name ends in .tar."
        ),
    ],
    secrets: Annotated[
        bool,
        typer.Option(
            "--secrets/--no-secrets",
            help="Include the settings, user keys and secrets of the home.",
        ),
    ] = True,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Save a stack, running or stopped.

    Databases and objects are as of one moment.

    The backup is readable by its owner only: it contains data and, by default, secrets.
    """
    from trace_etl.lite.backup.create import create
    from trace_etl.lite.errors import StackError
    from trace_etl.lite.home import Home

    try:
        with show_bytes() as report:
            made = create(Home.at(home), target, with_secrets=secrets, report=report)
    except StackError as error:
        raise print_error(error) from None
    if as_json:
        print_json({"backup": str(made.path), **_summarise(made.manifest)})
        return
    typer.echo(f"Saved {_describe(made.manifest)} to {made.path}.")
    if secrets:
        typer.echo("It contains user keys and secrets: keep it private.")


def restore(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Backup to restore.")],
    home: HomeOption = DEFAULT_HOME,
    objects_url: Annotated[
        str | None,
        typer.Option(
            metavar="s3://BUCKET/PREFIX",
            help="Empty object store of the new stack. Default: a directory of its home.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a new home from a backup.

    Compares every file, dataset and table with the backup.

    The home must not exist or be empty. Start it with `trace up` afterwards.
    """
    from trace_etl.lite.backup.restore import restore as restore_backup
    from trace_etl.lite.errors import StackError
    from trace_etl.lite.home import Home

    try:
        with show_bytes() as report:
            made = restore_backup(source, Home.at(home), objects_url=objects_url, report=report)
    except StackError as error:
        raise print_error(error) from None
    if as_json:
        print_json({"home": str(made.home), **_summarise(made.manifest)})
        return
    typer.echo(f"Restored {_describe(made.manifest)} to {made.home}; everything equals the backup.")
    if not made.manifest.has_secrets:
        typer.echo("The backup has no settings: pass --rpc-url to `trace up`, and add secrets.")
    typer.echo(f"Start it with: trace up --home {made.home}")


def _summarise(manifest: "BackupManifest") -> dict[str, Any]:
    return {
        "created_at": manifest.created_at,
        "release": manifest.release,
        "bytes": manifest.total_bytes,
        "files": len(manifest.files),
        "objects": len(manifest.objects()),
        "has_secrets": manifest.has_secrets,
        "datasets": [asdict(dataset) for dataset in manifest.datasets],
        "tables": [asdict(table) for table in manifest.tables],
    }


def _describe(manifest: "BackupManifest") -> str:
    current = [dataset for dataset in manifest.datasets if dataset.is_current]
    rows = sum(dataset.rows for dataset in current)
    return (
        f"{format_count(len(current), 'dataset')} ({format_number(rows)} rows), "
        f"{format_count(len(manifest.objects()), 'object')}, {format_size(manifest.total_bytes)}"
    )
