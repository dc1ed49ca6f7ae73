"""Connections to Postgres data. Operators are synchronous, and so are these."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import Connection

from trace_etl.data.errors import DataUnavailable

Conn = Connection[tuple[Any, ...]]
_BROKEN = (psycopg.OperationalError, psycopg.InterfaceError)


@contextmanager
def connect(dsn: str) -> Generator[Conn]:
    """A connection in autocommit; open transactions on it explicitly. Raises DataUnavailable."""
    with _told(), psycopg.connect(dsn, autocommit=True, application_name="trace-data") as conn:
        conn.prepare_threshold = 0  # the statements are few and constant: plan each one once
        yield conn


@contextmanager
def transaction(conn: Conn) -> Generator[None]:
    """Committed at the end, rolled back on any error. Raises DataUnavailable."""
    with _told(), conn.transaction():
        yield


@contextmanager
def _told() -> Generator[None]:
    try:
        yield
    except _BROKEN as error:
        raise DataUnavailable(
            f"Postgres data: {str(error).strip().partition(chr(10))[0]}"
        ) from error
