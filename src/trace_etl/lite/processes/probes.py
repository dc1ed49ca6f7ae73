"""Readiness probes: over HTTP, as a Postgres client, or by a ready file."""

import json
import ssl
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

import psutil

# Called with the child's pid, so that the answer of an earlier child does not count.
Probe = Callable[[int], bool]
_TIMEOUT = 2.0


def http(ca: str, *urls: str) -> Probe:
    """Ready when every URL's /healthz answers 200. HTTPS needs a certificate of the local authority."""
    return lambda pid: all(is_healthy(url, ca) for url in urls)


def postgres(dsn: str) -> Probe:
    """Ready when Postgres accepts a connection."""
    return lambda pid: _accepts_connection(dsn)


def announced(ready_file: Path) -> Probe:
    """Ready when the child with that pid has written its ready file."""
    return lambda pid: read_ready_file(ready_file).get("pid") == pid


def alive(pid: int) -> bool:
    """Ready as soon as the process runs, for processes without a listener."""
    return psutil.pid_exists(pid)


def is_healthy(url: str, ca: str) -> bool:
    """Return whether the service answers its health check, over verified TLS if its URL is https."""
    address = urlsplit(url)
    try:
        connection = _connect(address, ca)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == HTTPStatus.OK
        finally:
            connection.close()
    except (OSError, HTTPException):
        return False


def _connect(address: SplitResult, ca: str) -> HTTPConnection:
    host = address.hostname or ""
    if address.scheme == "http":
        return HTTPConnection(host, address.port, timeout=_TIMEOUT)
    context = ssl.create_default_context(cafile=ca)
    return HTTPSConnection(host, address.port, timeout=_TIMEOUT, context=context)


def read_ready_file(path: Path) -> dict[str, Any]:
    """Read the ready file of a worker; empty if it is not written yet."""
    try:
        return cast(dict[str, Any], json.loads(path.read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def _accepts_connection(dsn: str) -> bool:
    import psycopg  # `trace status` uses the other probes only

    try:
        psycopg.connect(dsn, connect_timeout=int(_TIMEOUT)).close()
    except psycopg.OperationalError:
        return False
    return True
