"""Serve the runtimes of Spark: start hosts, claim tasks, and run them until a signal."""

import os
import socket
import threading

import structlog
from prometheus_client import REGISTRY

from trace_etl.http.metrics_server import start_metrics_server
from trace_etl.process import stop_on_signals, write_ready_file
from trace_etl.queues.opening import open_queue
from trace_etl.worker.hosts.host_runner import HostRunner
from trace_etl.worker.hosts.host_start import HostStarter
from trace_etl.worker.settings import WorkerSettings
from trace_etl.worker.slots import work, work_on_endless

_log = structlog.stdlib.get_logger()


def serve_operators(cfg: WorkerSettings) -> None:
    """Follow chains, start Spark, then also run tasks until a signal stops the worker."""
    served = cfg.served()
    write_ready_file(cfg.ready_file, spark="starting")
    if cfg.host_paths is None and cfg.host_view is None:
        _log.warning("host_not_separated", fix="set TRACE_HOST_PATHS, or start it with `trace up`")
    if cfg.shared_keys_reason is not None:
        _log.warning("host_has_shared_keys", reason=cfg.shared_keys_reason)
    starter = None
    if cfg.starter_fd is not None:
        starter = HostStarter(socket.socket(fileno=cfg.starter_fd))
    runner = HostRunner(cfg, served, dict(os.environ), starter)
    REGISTRY.register(runner)
    try:
        if cfg.metrics_port is not None:
            start_metrics_server(cfg.metrics_port, REGISTRY, cfg.http_limits)
        queue, secrets = open_queue(cfg.queue_dsn), cfg.open_secrets(os.environ)
        stop = threading.Event()
        with work_on_endless(cfg, queue, runner, stop, secrets):
            runner.warm()
            stop_on_signals(stop)
            write_ready_file(cfg.ready_file, spark="ready")
            _log.info("worker_ready", runtimes=list(served.entries), slots=served.slots)
            work(cfg, queue, runner, stop, secrets)
    finally:
        runner.close()
        if starter is not None:
            starter.close()
