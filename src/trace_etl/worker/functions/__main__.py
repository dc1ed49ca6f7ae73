"""`python -m trace_etl.worker.functions`: the worker that runs user-defined functions."""

import os
import socket
import ssl
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import NoReturn

import httpx
import structlog

from trace_etl import landlock, logs
from trace_etl.http.clients.dispatcher_client import DispatcherClient, token_reader
from trace_etl.http.clients.thread_safe_transport import ThreadSafeTransport
from trace_etl.process import exit_on_signals, stop_on_signals, write_ready_file
from trace_etl.queues.pgqueue import PgQueue
from trace_etl.sandbox.broker.broker import PlatformClients
from trace_etl.sandbox.spawner import Spawner, launch_spawner
from trace_etl.worker.functions.environments import EnvironmentPool
from trace_etl.worker.functions.function_results import Bundles
from trace_etl.worker.functions.function_runner import FunctionRunner
from trace_etl.worker.functions.invoker import InvocationServer
from trace_etl.worker.functions.lambda_runner import LambdaRunner
from trace_etl.worker.settings import FunctionSettings
from trace_etl.worker.slots import BACKOFF, work

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
        _connect(cfg.dispatcher_url, tls) as dispatcher,
        _connect(cfg.query_url, tls) as query,
    ):
        upstream = PlatformClients(dispatcher, query)
        bundles = Bundles(cfg.open_objects(), served.entries)
        runner = FunctionRunner(bundles, upstream, cfg.functions_dir, spawner.start)
        stop = stop_on_signals()
        with accept_invocations(cfg, upstream, spawner, stop):
            write_ready_file(cfg.ready_file)
            _log.info("worker_ready", runtimes=list(served.entries), slots=served.slots)
            work(cfg, PgQueue(cfg.queue_dsn), runner, stop)
    spawner.close()
    return 0


def _connect(url: str, tls: ssl.SSLContext) -> httpx.Client:
    return httpx.Client(base_url=url, transport=ThreadSafeTransport(tls), trust_env=False)


@contextmanager
def accept_invocations(
    cfg: FunctionSettings, upstream: PlatformClients, spawner: Spawner, stop: threading.Event
) -> Generator[None]:
    """Run invocations of Lambda functions beside the tasks of queues, until the block ends."""
    served = cfg.served("lambda")
    if cfg.invoker_socket is None or not served.entries:
        yield
        return
    token = token_reader(cfg.worker_token_file)
    client = DispatcherClient(cfg.dispatcher_url, cfg.tls_ca, token, BACKOFF)
    limits = {name: entry.idle_timeout for name, entry in served.entries.items()}
    pool = EnvironmentPool(cfg.functions_dir, upstream, spawner.start, served.slots, limits)
    runner = LambdaRunner(Bundles(cfg.open_objects(), served.entries), pool)
    server = InvocationServer(
        cfg.invoker_socket,
        cfg.make_unique_id(),
        token,
        client,
        runner,
        served.entries,
        stop,
        cfg.drain_seconds,
    )
    try:
        yield
    finally:
        server.close()
        client.close()


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
