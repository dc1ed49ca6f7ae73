"""`trace keys`: rotate signing keys and worker tokens while the stack runs."""

from dataclasses import asdict
from pathlib import Path

import typer

from trace_etl.cli.client import EXIT_NOT_RUNNING, fail, session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import print_json

group = typer.Typer(no_args_is_help=True, help="Rotate keys, and print public ones.")


@group.command()
def rotate(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Sign new tokens with new keys.

    This concerns capability tokens, and the tokens of the sink and the scheduler. Older keys verify
    capability tokens until the last one they signed has expired, and tokens of services until the next
    rotation.
    """
    from trace_etl.lite.credentials import keys
    from trace_etl.lite.home import Home

    stack = Home.at(home)
    rotation = keys.rotate_task_key(require_credential(stack.task_keys))
    services = keys.rotate_service_key(require_credential(stack.service_keys), stack.service_tokens)
    if as_json:
        print_json({**asdict(rotation), "services": asdict(services)})
        return
    for changed in (rotation, services):
        typer.echo(f"New tokens are signed with {changed.signs}.")
        for kid in changed.verify:
            typer.echo(f"{kid} still verifies tokens.")
        for kid in changed.pruned:
            typer.echo(f"Deleted {kid}: its tokens are no longer valid.")


@group.command()
def rotate_worker(home: HomeOption = DEFAULT_HOME) -> None:
    """Create a new worker token.

    The previous token stays valid until the next rotation.
    """
    from trace_etl.lite.credentials import keys
    from trace_etl.lite.home import Home

    keys.rotate_worker_token(require_credential(Home.at(home).worker_token))
    typer.echo("Workers use a new token now; the previous token is still valid.")


@group.command()
def certificates(home: HomeOption = DEFAULT_HOME) -> None:
    """Print the public keys of manifests as a JWKS.

    Keep a copy, and give it to the readers of your data: `trace verify --manifest FILE --key JWKS`.
    """
    with session(home) as client:
        print_json(client.get("/v1/certificate-keys"))


def require_credential(path: Path) -> Path:
    """Return the path of a credential in a stack's home. Exits if it does not exist."""
    if not path.exists():
        fail([f"{path} does not exist: start the stack once with `trace up`"], EXIT_NOT_RUNNING)
    return path
