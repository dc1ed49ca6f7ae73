"""Open the queue service that a process is configured with."""

from trace_etl.queues.pgqueue import PgQueue
from trace_etl.queues.queue import Queue


def open_queue(dsn: str) -> Queue:
    """Open a queue service by its connection string (`TRACE_QUEUE_DSN`)."""
    return PgQueue(dsn)
