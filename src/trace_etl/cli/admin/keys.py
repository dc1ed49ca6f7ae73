"""`trace keys`: rotating what signs and what identifies, while everything runs."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trace_etl.cli.client import EXIT_NOT_RUNNING, fail
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import print_json

if TYPE_CHECKING:
    from trace_etl.lite.home import Home


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    keys = typer.Typer(no_args_is_help=True, help="Rotate signing keys and worker tokens.")
    keys.command()(rotate)
    keys.command()(rotate_worker)
    app.add_typer(keys, name="keys")


def rotate(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Sign new capability tokens with a new key.

    Older keys verify until their last token has expired; a later rotation then drops them.
    """
    from trace_etl.lite.credentials import keys

    done = keys.rotate_task_key(_existing(home).task_keys)
    if as_json:
        print_json(asdict(done))
        return
    typer.echo(f"Signing with {done.signs} from now on.")
    for kid in done.verify:
        typer.echo(f"Still verifying with {kid}.")
    for kid in done.pruned:
        typer.echo(f"Dropped {kid}: its last token has expired.")


def rotate_worker(home: HomeOption = DEFAULT_HOME) -> None:
    """Give workers a new token. The one before stays valid until the next rotation."""
    from trace_etl.lite.credentials import keys

    keys.rotate_worker_token(_existing(home).worker_token)
    typer.echo("Workers claim with a new token from now on; the one before is still valid.")


def _existing(home: Path) -> "Home":
    from trace_etl.lite.home import Home

    place = Home(home.expanduser().absolute())
    if not place.task_keys.is_dir() or not place.worker_token.exists():
        fail([f"no stack was ever started in {place.path}; try `trace up`"], EXIT_NOT_RUNNING)
    return place
