"""`python -m trace_etl.worker`: the worker whose operators run on Spark, in processes of their own."""

import os
import sys
import threading

import structlog
from prometheus_client import REGISTRY

from trace_etl import logs
from trace_etl.http.metrics_server import start_metrics_server
from trace_etl.process import exit_on_signals, stop_on_signals, write_ready_file
from trace_etl.queues.opening import open_queue
from trace_etl.worker.hosts.host_runner import HostRunner
from trace_etl.worker.settings import WorkerSettings
from trace_etl.worker.slots import work, work_on_endless

_log = structlog.stdlib.get_logger()


def main() -> int:
    """Follow chains, start Spark, then also run tasks until a signal stops the worker."""
    cfg = WorkerSettings()  # pyright: ignore[reportCallIssue] - filled from the environment
    logs.configure("worker", cfg.log_level)
    exit_on_signals()
    served = cfg.served()
    write_ready_file(cfg.ready_file, spark="starting")
    if cfg.host_paths is None and cfg.host_view is None:
        _log.warning("host_not_separated", fix="set TRACE_HOST_PATHS, or start it with `trace up`")
    runner = HostRunner(cfg, served, dict(os.environ))
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
