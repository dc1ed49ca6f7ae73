"""Drops the tables of generations that nobody reads any more, when the Dispatcher says so."""

import threading

import structlog

from trace_etl.api.task.retired_tables import MOST_TABLES
from trace_etl.data import connection, retired_tables
from trace_etl.http.dispatcher_client import DispatcherClient
from trace_etl.model.errors import TraceError

_log = structlog.stdlib.get_logger()


def sweep_once(dsn: str, client: DispatcherClient) -> int:
    """One look at every table, so many at a time; how many were dropped.

    Raises DataUnavailable, Unreachable, Refused.
    """
    dropped, after = 0, ""
    with connection.connect(dsn) as conn:
        while tables := retired_tables.held(conn, after=after, limit=MOST_TABLES):
            for one in client.tables_to_drop(tables):
                if retired_tables.drop(conn, one.tables, one.dataset_versions):
                    dropped += len(one.tables)
                    _log.info("retired_tables_dropped", tables=one.tables)
            after = tables[-1]
    return dropped


def sweep(dsn: str, client: DispatcherClient, every: float, stop: threading.Event) -> None:
    """Look now and then until asked to stop; what fails is looked at next time."""
    while not stop.is_set():
        try:
            sweep_once(dsn, client)
        except TraceError as error:
            _log.warning("tables_not_swept", error=str(error))
        stop.wait(every)
