"""`python -m trace_etl.worker`."""

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import structlog
from prometheus_client import start_http_server

from trace_etl import logs
from trace_etl.data import migrations
from trace_etl.http.dispatcher_client import DispatcherClient, read_token
from trace_etl.objects.opening import open_store
from trace_etl.policy.retry import Backoff
from trace_etl.queues.pgqueue import Consumer
from trace_etl.sink.retired_tables import sweep
from trace_etl.sink.sink import QUEUE, Sink
from trace_etl.worker.attempt import Runner
from trace_etl.worker.settings import WorkerSettings
from trace_etl.worker.slots import Slots

_log = structlog.stdlib.get_logger()
_INSISTENCE = Backoff.of_seconds(0.2, 15, jitter=0.3)


def main() -> int:
    """Warm Spark, then claim and run until asked to stop."""
    cfg = WorkerSettings()  # pyright: ignore[reportCallIssue] - filled from the environment
    logs.configure("worker", cfg.log_level)
    _exit_on_signals()
    _say(cfg.ready_file, "starting")
    # PySpark takes a second to import: whoever waits for the first word must not.
    from trace_etl.spark.runner import SparkRunner
    from trace_etl.spark.session.conf import heap_within
    from trace_etl.spark.settings import SparkSettings

    runner = SparkRunner(
        SparkSettings(
            objects=open_store(cfg.objects_url),
            master=cfg.spark_master,
            memory=heap_within(cfg.memory_limit, cfg.spark_master)
            if cfg.memory_limit
            else cfg.spark_memory,
            spark_conf=cfg.spark_conf,
            spark_dir=cfg.spark_dir,
            java_home=cfg.java_home,
            slots=cfg.slots,
            rpc_pools={name: tuple(urls) for name, urls in cfg.rpc_pools.items()},
            data_dsn=cfg.data_dsn,
        )
    )
    try:
        if cfg.metrics_port is not None:
            start_http_server(cfg.metrics_port, "127.0.0.1")
        if cfg.data_dsn is not None:
            for name in migrations.apply(cfg.data_dsn):
                _log.info("migration_applied", name=name)
        runner.warm()
        stop = _stop_on_signals()
        _say(cfg.ready_file, "ready")
        _log.info("worker_ready", runtimes=cfg.runtimes, slots=cfg.slots)
        work(cfg, runner, stop)
    finally:
        runner.close()
    return 0


def work(cfg: WorkerSettings, runner: Runner, stop: threading.Event) -> None:
    """Run attempts, and write buffered datasets beside them, until `stop`."""
    # A restarted worker is another one: what its predecessor held is not its own.
    worker_id = f"{cfg.worker_id}:{socket.gethostname()}:{os.getpid()}"
    consumer = Consumer(cfg.queue_dsn, cfg.runtimes, worker_id)
    client = DispatcherClient(
        cfg.dispatcher_url, cfg.tls_ca, read_token(cfg.worker_token_file), _INSISTENCE
    )
    slots = Slots(consumer, client, runner, worker_id=worker_id, size=cfg.slots, stop=stop)
    sweeper = threading.Thread(
        target=sweep, args=(cfg.data_dsn, client, cfg.sweep_every, stop), name="sweep", daemon=True
    )
    try:
        if cfg.data_dsn is not None:
            sweeper.start()
        with _sinking(cfg, client, worker_id, stop):
            slots.run()
    finally:
        consumer.close()
        client.close()


@contextmanager
def _sinking(
    cfg: WorkerSettings, client: DispatcherClient, worker_id: str, stop: threading.Event
) -> Generator[None]:
    """Write buffered datasets beside the attempts, where Postgres data can be reached."""
    if cfg.data_dsn is None:
        yield
        return
    consumer = Consumer(cfg.queue_dsn, [QUEUE], f"{worker_id}:sink")
    sink = Sink(consumer, client, cfg.data_dsn, open_store(cfg.objects_url), stop)
    thread = threading.Thread(target=sink.run, name="sink")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        consumer.close()


def _exit_on_signals() -> None:
    """While Spark is warming nothing is held yet: leave at once."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    _on_signals(leave)


def _stop_on_signals() -> threading.Event:
    """From now on attempts may be running: finish the turn, give them back, then leave."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()

    _on_signals(ask)
    return stop


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _say(path: Path | None, spark: str) -> None:
    """Tell whoever watches how far we are; readers see the old word or the new one."""
    if path is None:
        return
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"spark": spark, "pid": os.getpid()}))
    fresh.replace(path)


if __name__ == "__main__":
    sys.exit(main())
