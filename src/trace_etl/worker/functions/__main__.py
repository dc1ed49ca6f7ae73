"""`python -m trace_etl.worker.functions`: the worker that runs user-defined functions."""

import os
import sys
from typing import NoReturn

from trace_etl import landlock
from trace_etl.process import exit_on_signals
from trace_etl.sandbox.spawner import launch_spawner
from trace_etl.worker.settings import FunctionSettings


def main() -> int:
    """Claim and run tasks of user-defined functions until a signal stops the worker."""
    cfg = FunctionSettings()  # pyright: ignore[reportCallIssue] - filled from the environment
    exit_on_signals()
    if cfg.spawner_fd is None:
        restrict_and_restart(cfg)
    # This program starts twice: the first time without these imports.
    from trace_etl.worker.functions.service import serve_functions

    serve_functions(cfg, cfg.spawner_fd)
    return 0


def restrict_and_restart(cfg: FunctionSettings) -> NoReturn:
    """Start the spawner, give up the rights that only it needs, and start this program again.

    Landlock binds a thread and what it starts. Starting again leaves no thread with more rights.
    """
    connection, _ = launch_spawner(cfg.functions_dir)
    connection.set_inheritable(True)
    if cfg.allowed_paths is not None:
        read, write = cfg.allowed_paths.read, cfg.allowed_paths.write
        landlock.restrict(read=[*read, *write], write=write, scoped=True)
    environment = {**os.environ, "TRACE_SPAWNER_FD": str(connection.fileno())}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606


if __name__ == "__main__":
    sys.exit(main())
