"""trace devchain: a chain to read when there is none."""

import typer

from trace_etl.devchain.command import devchain


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("devchain")(devchain)
