"""`trace devchain`: serve a development chain."""

import typer

PASS_ARGUMENTS_ON = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Context settings of the command: the inner program of `devchain` parses the options."""


def devchain(context: typer.Context) -> None:
    """Serve a development chain over JSON-RPC.

    The chain is deterministic and Ethereum-like. Serves until Ctrl-C.
    """
    # Hashing and serving take a third of a second to import; `trace --help` must not pay for that.
    from trace_etl.devtools.devchain.command import devchain as serve

    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(serve)
    program(context.args, prog_name=context.command_path)
