"""`python -m trace_etl.worker.functions`: the worker that runs user-defined functions."""

import ssl
import sys

import httpx
import structlog

from trace_etl import logs
from trace_etl.process import exit_on_signals, stop_on_signals, write_ready_file
from trace_etl.queues.pgqueue import PgQueue
from trace_etl.sandbox.broker import Upstream
from trace_etl.worker.function_runner import FunctionRunner
from trace_etl.worker.settings import FunctionSettings
from trace_etl.worker.slots import work

_log = structlog.stdlib.get_logger()


def main() -> int:
    """Claim and run tasks of user-defined functions until a signal stops the worker."""
    cfg = FunctionSettings()  # pyright: ignore[reportCallIssue] - filled from the environment
    logs.configure("functions", cfg.log_level)
    exit_on_signals()
    tls = ssl.create_default_context(cafile=str(cfg.tls_ca))
    with (
        httpx.Client(base_url=cfg.dispatcher_url, verify=tls, trust_env=False) as dispatcher,
        httpx.Client(base_url=cfg.query_url, verify=tls, trust_env=False) as query,
    ):
        upstream = Upstream(dispatcher, query)
        runner = FunctionRunner(cfg.open_objects(), upstream, cfg.functions_dir, cfg.limits())
        stop = stop_on_signals()
        write_ready_file(cfg.ready_file)
        _log.info("worker_ready", runtimes=cfg.runtimes, slots=cfg.slots)
        work(cfg, PgQueue(cfg.queue_dsn), runner, stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
