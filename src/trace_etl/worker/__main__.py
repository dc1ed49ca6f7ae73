"""`python -m trace_etl.worker`: the worker whose operators run on Spark, in processes of their own."""

import os
import sys
from typing import NoReturn

import structlog

from trace_etl import account, landlock, logs
from trace_etl.process import exit_on_signals
from trace_etl.worker.hosts.host_start import launch_starter
from trace_etl.worker.settings import AllowedPaths, WorkerSettings

_log = structlog.stdlib.get_logger()
_STARTER = "TRACE_STARTER_FD"


def main() -> int:
    """Claim and run tasks until a signal stops the worker."""
    cfg = WorkerSettings()  # pyright: ignore[reportCallIssue] - filled from the environment
    logs.configure("worker", cfg.log_level)
    exit_on_signals()
    if cfg.allowed_paths is not None:
        restrict_and_restart(cfg, cfg.allowed_paths)
    # This program may start twice: the first time without these imports.
    from trace_etl.worker.service import serve_operators

    serve_operators(cfg)
    return 0


def restrict_and_restart(cfg: WorkerSettings, allowed: AllowedPaths) -> NoReturn:
    """Start the starter of hosts, give up the rights that only it needs, and start this program again.

    Landlock binds a thread and what it starts. Starting again leaves no thread with more rights.
    """
    paths = cfg.host_paths or AllowedPaths(read=[], write=[])
    settings: dict[str, object] = {**paths.model_dump(), "directory": "/", "landlock": True}
    environment = {**os.environ, "TRACE_ALLOWED_PATHS": "null"}
    if (reason := account.explain_missing(settings)) is None:
        connection, _ = launch_starter(allowed.read, allowed.write)
        connection.set_inheritable(True)
        environment[_STARTER] = str(connection.detach())
    else:
        _log.warning("host_without_account", reason=reason)
    landlock.restrict(read=[*allowed.read, *allowed.write], write=allowed.write, scoped=True)
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606


if __name__ == "__main__":
    sys.exit(main())
