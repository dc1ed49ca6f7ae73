"""`python -m trace_etl.dispatcher`."""

import asyncio
import gc

import structlog

from trace_etl import logs
from trace_etl.dispatcher.service import run_loops, running
from trace_etl.dispatcher.settings import DispatcherSettings
from trace_etl.dispatcher.task_objects.objects import streams_body
from trace_etl.http.server.listeners import Listener, Tls, run, serve, stop_on_signals
from trace_etl.queues.opening import open_queue
from trace_etl.queues.queue import Queue
from trace_etl.state.db import migrations

_log = structlog.stdlib.get_logger()


async def _serve(cfg: DispatcherSettings, queue: Queue) -> None:
    stop = stop_on_signals()
    async with running(cfg, queue) as service, asyncio.TaskGroup() as group:
        group.create_task(run_loops(service, stop))
        _log.info("dispatcher_ready", api_port=cfg.api_port, internal_port=cfg.internal_port)
        listeners = [
            Listener(service.user, cfg.api_host, cfg.api_port, on_stop=service.changes.close),
            Listener(
                service.internal,
                cfg.internal_host,
                cfg.internal_port,
                is_rpc=True,
                streams_body=streams_body,
            ),
        ]
        try:
            tls = Tls(cfg.tls_cert, cfg.tls_key)
            await serve(listeners, tls=tls, stop=stop, limits=cfg.http_limits)
        finally:
            stop.set()


def main() -> None:
    """Apply migrations, then serve until a stop signal arrives."""
    cfg = DispatcherSettings()  # pyright: ignore[reportCallIssue] - filled from the environment
    logs.configure("dispatcher", cfg.log_level)
    for name in migrations.apply(cfg.state_dsn):
        _log.info("migration_applied", name=name)
    queue = open_queue(cfg.queue_dsn)
    queue.prepare()
    _tune_garbage_collector()
    run(_serve(cfg, queue))


def _tune_garbage_collector() -> None:
    # Caches hold many long-lived objects and requests create almost no cycles. With the default
    # thresholds, collection took a tenth of the Dispatcher's processor time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


if __name__ == "__main__":
    main()
