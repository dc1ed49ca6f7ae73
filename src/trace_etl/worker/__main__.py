"""`python -m trace_etl.worker`."""

import sys

import structlog
from prometheus_client import REGISTRY

from trace_etl import logs
from trace_etl.dag.chain.rules import VerifyRules
from trace_etl.data import migrations
from trace_etl.http.metrics_server import start_metrics_server
from trace_etl.process import exit_on_signals, stop_on_signals, write_ready_file
from trace_etl.queues.pgqueue import PgQueue
from trace_etl.worker.settings import WorkerSettings
from trace_etl.worker.slots import work

_log = structlog.stdlib.get_logger()


def main() -> int:
    """Start Spark, then claim and run tasks until a signal stops the worker."""
    cfg = WorkerSettings()  # pyright: ignore[reportCallIssue] - filled from the environment
    logs.configure("worker", cfg.log_level)
    exit_on_signals()
    served = cfg.served()
    write_ready_file(cfg.ready_file, spark="starting")
    # PySpark takes a second to import: do that after the supervisor knows that the worker is up.
    from trace_etl.spark.runner import SparkRunner
    from trace_etl.spark.session.conf import heap_within
    from trace_etl.spark.settings import SparkSettings

    runner = SparkRunner(
        SparkSettings(
            objects=cfg.open_objects(),
            master=cfg.spark_master,
            memory=heap_within(cfg.memory_limit, cfg.spark_master)
            if cfg.memory_limit
            else cfg.spark_memory,
            spark_conf=cfg.spark_conf,
            spark_dir=cfg.spark_dir,
            java_home=cfg.java_home,
            slots=served.slots,
            rpc_pools={name: tuple(urls) for name, urls in cfg.rpc_pools.items()},
            rpc_rules={
                name: VerifyRules(pool.verify, tuple(pool.exceptions))
                for name, pool in cfg.rpc_rules.items()
            },
            data_dsn=cfg.data_dsn,
        )
    )
    try:
        if cfg.metrics_port is not None:
            start_metrics_server(cfg.metrics_port, REGISTRY, cfg.http_limits)
        if cfg.data_dsn is not None:
            for name in migrations.apply(cfg.data_dsn):
                _log.info("migration_applied", name=name)
        runner.warm()
        stop = stop_on_signals()
        write_ready_file(cfg.ready_file, spark="ready")
        _log.info("worker_ready", runtimes=list(served.entries), slots=served.slots)
        work(cfg, PgQueue(cfg.queue_dsn), runner, stop)
    finally:
        runner.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
