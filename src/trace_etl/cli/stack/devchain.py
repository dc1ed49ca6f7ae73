"""trace devchain: a chain to read when there is none."""

import typer


def register(app: typer.Typer) -> None:
    """Add the command. Its options are its own: they are read once it is asked for."""
    words = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command("devchain", add_help_option=False, context_settings=words)(devchain)


def devchain(context: typer.Context) -> None:
    """Serve a deterministic Ethereum-like chain over JSON-RPC, until interrupted."""
    # Hashing and serving take a third of a second to import, which `trace --help` need not pay.
    from trace_etl.devtools.devchain.command import devchain as serve

    chain = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    chain.command()(serve)
    chain(context.args, prog_name=context.command_path)
