"""`python -m trace_etl.worker.functions`: the worker that runs user-defined functions."""

import os
import socket
import ssl
import sys
from typing import NoReturn

import httpx
import structlog

from trace_etl import landlock, logs
from trace_etl.process import exit_on_signals, stop_on_signals, write_ready_file
from trace_etl.queues.pgqueue import PgQueue
from trace_etl.sandbox.broker import PlatformClients
from trace_etl.sandbox.spawner import Spawner, launch_spawner
from trace_etl.worker.function_runner import FunctionRunner
from trace_etl.worker.settings import FunctionSettings
from trace_etl.worker.slots import work

_log = structlog.stdlib.get_logger()


def main() -> int:
    """Claim and run tasks of user-defined functions until a signal stops the worker."""
    cfg = FunctionSettings()  # pyright: ignore[reportCallIssue] - filled from the environment
    logs.configure("functions", cfg.log_level)
    exit_on_signals()
    if cfg.spawner_fd is None:
        restrict_and_restart(cfg)
    served = cfg.served()
    spawner = Spawner(socket.socket(fileno=cfg.spawner_fd))
    tls = ssl.create_default_context(cafile=str(cfg.tls_ca))
    with (
        httpx.Client(base_url=cfg.dispatcher_url, verify=tls, trust_env=False) as dispatcher,
        httpx.Client(base_url=cfg.query_url, verify=tls, trust_env=False) as query,
    ):
        upstream = PlatformClients(dispatcher, query)
        runner = FunctionRunner(
            cfg.open_objects(), upstream, cfg.functions_dir, served.entries, spawner.start
        )
        stop = stop_on_signals()
        write_ready_file(cfg.ready_file)
        _log.info("worker_ready", runtimes=list(served.entries), slots=served.slots)
        work(cfg, PgQueue(cfg.queue_dsn), runner, stop)
    spawner.close()
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
