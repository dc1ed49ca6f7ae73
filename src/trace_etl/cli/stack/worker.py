"""`trace worker`: run a worker that is not part of `trace up`."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from trace_etl.cli.client import fail


def worker(
    runtime: Annotated[
        list[str], typer.Option(help="Runtime whose tasks to run. Repeat it for several.")
    ],
) -> None:
    """Run a worker of some runtimes.

    It takes its other settings from the environment, and runs until a signal stops it.
    """
    module = _choose_module(runtime)
    environment = {**os.environ, "TRACE_RUNTIMES": json.dumps(runtime)}
    command = [sys.executable, "-m", module]
    os.execve(sys.executable, command, environment)  # noqa: S606


def _choose_module(names: list[str]) -> str:
    """Return the module of the worker that serves all of these runtimes, or end with the faults."""
    from pydantic import ValidationError

    from trace_etl.dag.runtimes import BadRuntimes, load_runtimes
    from trace_etl.worker.settings import FunctionSettings, WorkerSettings

    file = os.environ.get("TRACE_RUNTIMES_FILE")
    try:
        entries = load_runtimes(Path(file) if file else None).entries
    except BadRuntimes as error:
        fail([str(error)])
    served = {name: entry for name, entry in entries.items() if entry.launcher != "dispatcher"}
    if unknown := [name for name in names if name not in served]:
        fail([f"--runtime: no worker serves {unknown[0]!r}; use one of {', '.join(served)}"])
    launchers = {served[name].launcher for name in names}
    is_trusted = {served[name].is_trusted for name in names}
    if len(is_trusted) > 1:
        fail(
            ["--runtime: one worker cannot serve trusted and untrusted runtimes; start two workers"]
        )
    try:
        if is_trusted == {True}:
            WorkerSettings()  # pyright: ignore[reportCallIssue] - filled from the environment
            return "trace_etl.worker"
        cfg = FunctionSettings()  # pyright: ignore[reportCallIssue]
    except ValidationError as error:
        fail([f"TRACE_{e['loc'][0]}".upper() + f": {e['msg']}" for e in error.errors()])
    if "lambda" in launchers and cfg.invoker_socket is None:
        fail(["TRACE_INVOKER_SOCKET: is required for runtimes with the launcher lambda; set it"])
    return "trace_etl.worker.functions"
