"""Drop the tables of generations that the Dispatcher has retired, and delete old records of batches."""

import threading
from datetime import timedelta

import structlog

from trace_etl.api.task.retired_tables import MAX_TABLES
from trace_etl.data import buffers, connection, retired_tables
from trace_etl.http.clients.sink_client import SinkClient
from trace_etl.model.errors import TraceError

_log = structlog.stdlib.get_logger()


def sweep_once(dsn: str, client: SinkClient) -> int:
    """Ask the Dispatcher about every table, in batches, and drop the retired ones.

    Returns how many were dropped. Raises DataUnavailable, Unreachable, Refused.
    """
    dropped, after = 0, ""
    with connection.connect(dsn) as conn:
        while tables := retired_tables.list_dataset_tables(conn, after=after, limit=MAX_TABLES):
            for retired in client.tables_to_drop(tables):
                if retired_tables.drop_tables(conn, retired.tables, retired.dataset_versions):
                    dropped += len(retired.tables)
                    _log.info("retired_tables_dropped", tables=retired.tables)
            after = tables[-1]
        buffers.delete_old_records(conn)
    return dropped


def sweep(dsn: str, client: SinkClient, interval: timedelta, stop: threading.Event) -> None:
    """Sweep at every interval until `stop` is set. A failed sweep is repeated after the next interval."""
    while not stop.is_set():
        try:
            sweep_once(dsn, client)
        except TraceError as error:
            _log.warning("table_sweep_failed", error=str(error))
        stop.wait(interval.total_seconds())
