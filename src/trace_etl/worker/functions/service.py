"""Serve tasks and invocations of user-defined functions, with the rights that are left."""

import socket
import ssl
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager

import httpx
import structlog

from trace_etl import logs
from trace_etl.http.clients.dispatcher_client import DispatcherClient, token_reader
from trace_etl.http.clients.thread_safe_transport import ThreadSafeTransport
from trace_etl.process import stop_on_signals, write_ready_file
from trace_etl.queues.opening import open_queue
from trace_etl.sandbox.broker.broker import PlatformClients
from trace_etl.sandbox.spawner import Spawner
from trace_etl.worker.functions.environments import EnvironmentPool
from trace_etl.worker.functions.function_results import Bundles
from trace_etl.worker.functions.function_runner import FunctionRunner
from trace_etl.worker.functions.invoker import InvocationServer
from trace_etl.worker.functions.lambda_runner import LambdaRunner
from trace_etl.worker.functions.threaded_runner import ThreadedRunner
from trace_etl.worker.settings import FunctionSettings
from trace_etl.worker.slots import BACKOFF, work

_log = structlog.stdlib.get_logger()


def serve_functions(cfg: FunctionSettings, spawner_fd: int) -> None:
    """Claim and run tasks until a signal stops the worker. The spawner answers at `spawner_fd`."""
    logs.configure("functions", cfg.log_level)
    served = cfg.served()
    spawner = Spawner(socket.socket(fileno=spawner_fd))
    tls = ssl.create_default_context(cafile=str(cfg.tls_ca))
    with (
        _connect(cfg.dispatcher_url, tls) as dispatcher,
        _connect(cfg.query_url, tls) as query,
    ):
        upstream = PlatformClients(dispatcher, query)
        bundles = Bundles(cfg.open_objects(), served.entries)
        runner = FunctionRunner(bundles, upstream, cfg.functions_dir, spawner.start)
        stop = stop_on_signals()
        with _accept_invocations(cfg, upstream, spawner, stop):
            write_ready_file(cfg.ready_file)
            _log.info("worker_ready", runtimes=list(served.entries), slots=served.slots)
            with closing(ThreadedRunner(runner, served.slots)) as threaded:
                work(cfg, open_queue(cfg.queue_dsn), threaded, stop)
    spawner.close()


def _connect(url: str, tls: ssl.SSLContext) -> httpx.Client:
    return httpx.Client(base_url=url, transport=ThreadSafeTransport(tls), trust_env=False)


@contextmanager
def _accept_invocations(
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
