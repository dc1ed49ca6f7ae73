"""`python -m trace_etl.worker.functions`: the worker that runs user-defined functions."""

import os
import sys

from trace_etl import landlock
from trace_etl.process import count_threads, exit_on_signals
from trace_etl.sandbox.spawner import launch_spawner
from trace_etl.worker.functions.service import serve_functions
from trace_etl.worker.settings import FunctionSettings


def main() -> int:
    """Claim and run tasks of user-defined functions until a signal stops the worker."""
    cfg = FunctionSettings()  # pyright: ignore[reportCallIssue] - filled from the environment
    exit_on_signals()
    spawner = start_restricted(cfg) if cfg.spawner_fd is None else cfg.spawner_fd
    serve_functions(cfg, spawner)
    return 0


def start_restricted(cfg: FunctionSettings) -> int:
    """Start the spawner, and give up the rights that only it needs. Returns the socket of the spawner.

    Landlock binds a thread and what it starts. If this process has another thread, the program starts
    again, so that no thread with more rights is left.
    """
    connection, _ = launch_spawner(cfg.functions_dir)
    if cfg.allowed_paths is None:
        return connection.detach()
    read, write = cfg.allowed_paths.read, cfg.allowed_paths.write
    landlock.restrict(read=[*read, *write], write=write, scoped=True)
    if count_threads() == 1:
        return connection.detach()
    connection.set_inheritable(True)
    environment = {**os.environ, "TRACE_SPAWNER_FD": str(connection.fileno())}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606


if __name__ == "__main__":
    sys.exit(main())
