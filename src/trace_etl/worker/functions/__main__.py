"""`python -m trace_etl.worker.functions`: the worker that runs user-defined functions."""

import sys

from trace_etl.process import exit_on_signals
from trace_etl.sandbox.spawner import launch_spawner
from trace_etl.worker import restriction
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
    """Start the spawner, and give up the rights that only it needs. Returns the socket of the spawner."""
    connection, _ = launch_spawner(cfg.functions_dir)
    descriptor = connection.detach()
    if cfg.allowed_paths is not None:
        restriction.restrict(cfg.allowed_paths, {"TRACE_SPAWNER_FD": descriptor})
    return descriptor


if __name__ == "__main__":
    sys.exit(main())
