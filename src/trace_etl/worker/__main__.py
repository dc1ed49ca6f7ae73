"""`python -m trace_etl.worker`: the worker whose operators run on Spark, in processes of their own."""

import sys

import structlog

from trace_etl import account, logs
from trace_etl.process import exit_on_signals
from trace_etl.worker import restriction
from trace_etl.worker.hosts.host_start import launch_starter
from trace_etl.worker.service import serve_operators
from trace_etl.worker.settings import AllowedPaths, WorkerSettings

_log = structlog.stdlib.get_logger()


def main() -> int:
    """Claim and run tasks until a signal stops the worker."""
    cfg = WorkerSettings()  # pyright: ignore[reportCallIssue] - filled from the environment
    logs.configure("worker", cfg.log_level)
    exit_on_signals()
    if cfg.allowed_paths is not None:
        start_restricted(cfg, cfg.allowed_paths)
        cfg = WorkerSettings()  # pyright: ignore[reportCallIssue]
    serve_operators(cfg)
    return 0


def start_restricted(cfg: WorkerSettings, allowed: AllowedPaths) -> None:
    """Start the starter of hosts, and give up the rights that only it needs."""
    paths = cfg.host_paths or AllowedPaths(read=[], write=[])
    settings: dict[str, object] = {**paths.model_dump(), "directory": "/", "landlock": True}
    descriptors: dict[str, int] = {}
    if (reason := account.explain_missing(settings)) is None:
        connection, _ = launch_starter(allowed.read, allowed.write)
        descriptors["TRACE_STARTER_FD"] = connection.detach()
    else:
        _log.warning("host_without_account", reason=reason)
    restriction.restrict(allowed, descriptors)


if __name__ == "__main__":
    sys.exit(main())
