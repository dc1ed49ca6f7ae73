"""`python -m trace_etl.sink`."""

import os
import socket
import sys
import threading

import structlog

from trace_etl import logs
from trace_etl.data import migrations
from trace_etl.data.buffer_writer import BufferWriter
from trace_etl.http.clients.dispatcher_client import token_reader
from trace_etl.http.clients.sink_client import SinkClient
from trace_etl.process import exit_on_signals, stop_on_signals, write_ready_file
from trace_etl.queues.opening import open_queue
from trace_etl.queues.queue import Queue
from trace_etl.sink.retired_tables import sweep
from trace_etl.sink.settings import SinkSettings
from trace_etl.sink.sink import QUEUE, Sink

_log = structlog.stdlib.get_logger()


def main() -> int:
    """Update the schema of Postgres data, then write batches until a signal stops the sink."""
    cfg = SinkSettings()  # pyright: ignore[reportCallIssue] - filled from the environment
    logs.configure("sink", cfg.log_level)
    exit_on_signals()
    for name in migrations.apply(cfg.data_dsn):
        _log.info("migration_applied", name=name)
    stop = stop_on_signals()
    write_ready_file(cfg.ready_file)
    _log.info("sink_ready")
    run(cfg, open_queue(cfg.queue_dsn), stop)
    return 0


def run(cfg: SinkSettings, queue: Queue, stop: threading.Event) -> None:
    """Write batches, and sweep for retired tables in a second thread, until `stop` is set."""
    consumer = queue.consumer([QUEUE], f"{cfg.sink_id}:{socket.gethostname()}:{os.getpid()}")
    client = SinkClient(cfg.dispatcher_url, cfg.tls_ca, token_reader(cfg.service_token_file))
    writer = BufferWriter(cfg.data_dsn)
    sweeper = threading.Thread(
        target=sweep, args=(cfg.data_dsn, client, cfg.sweep_interval, stop), name="sweep"
    )
    sweeper.start()
    try:
        Sink(consumer, client, writer, cfg.open_objects(), stop, cfg.max_batch_bytes).run()
    finally:
        writer.close()
        stop.set()
        sweeper.join()
        consumer.close()
        client.close()


if __name__ == "__main__":
    sys.exit(main())
