"""Connections to Postgres data. They are synchronous because operators are."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import Connection

from trace_etl.data.errors import DataUnavailable, first_line

Conn = Connection[tuple[Any, ...]]
_CONNECTION_LOST = (psycopg.OperationalError, psycopg.InterfaceError)


@contextmanager
def connect(dsn: str) -> Generator[Conn]:
    """Open a connection in autocommit mode. Raises DataUnavailable."""
    with (
        _translate_errors(),
        psycopg.connect(dsn, autocommit=True, application_name="trace-data") as conn,
    ):
        conn.prepare_threshold = 0  # the statements are few and constant: plan each one once
        yield conn


@contextmanager
def transaction(conn: Conn) -> Generator[None]:
    """Commit at the end; roll back on any error. Raises DataUnavailable."""
    with _translate_errors(), conn.transaction():
        yield


@contextmanager
def _translate_errors() -> Generator[None]:
    try:
        yield
    except _CONNECTION_LOST as error:
        raise DataUnavailable(f"Postgres data: {first_line(error)}") from error
