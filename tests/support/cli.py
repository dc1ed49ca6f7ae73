"""Commands that run against a Dispatcher or a stack of a test."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from support.lifecycle.lifecycle import Bench
from trace_etl.cli.main import app
from trace_etl.lite import connection
from trace_etl.lite.home import Home

TRACE = [sys.executable, "-c", "from trace_etl.cli.main import main; main()"]


def start_command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, as in a terminal: one that starts the services of a stack."""
    return subprocess.run(
        [*TRACE, *words], capture_output=True, text=True, env={**os.environ, **environment}
    )


def run_command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the test process: a process of its own would import the program again."""
    result = CliRunner().invoke(app, list(words), env=environment)
    return subprocess.CompletedProcess(words, result.exit_code, result.stdout, result.stderr)


def connected_cli(bench: Bench, directory: Path) -> Callable[..., str]:
    """Return a function that runs a command with this home and returns its output."""
    home, cfg, secrets = Home(directory), bench.live.cfg, bench.live.secrets
    described = connection.describe(
        home, api=cfg.api_port, internal=cfg.internal_port, query=1, pid=1
    )
    own = replace(described, ca=str(secrets.ca), user_token=str(secrets.directory / "user.jwt"))
    connection.write(home.connection, own)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments, "--home", str(directory)])
        assert result.exit_code == 0, result.output
        return result.output

    return run
