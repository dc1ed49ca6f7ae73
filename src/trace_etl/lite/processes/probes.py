"""Readiness probes: over HTTPS, as a Postgres client, or by a ready file."""

import http.client
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import psutil
import psycopg

# Called with the child's pid, so that the answer of an earlier child does not count.
Probe = Callable[[int], bool]
_TIMEOUT = 2.0


def https(ca: str, *urls: str) -> Probe:
    """Ready when every URL's /healthz answers 200 with a certificate of the local authority."""
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
    """Return whether the service answers its health check over verified TLS."""
    address = urlsplit(url)
    try:
        context = ssl.create_default_context(cafile=ca)
        connection = http.client.HTTPSConnection(
            address.hostname or "", address.port, timeout=_TIMEOUT, context=context
        )
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == http.HTTPStatus.OK
        finally:
            connection.close()
    except (OSError, http.client.HTTPException):
        return False


def read_ready_file(path: Path) -> dict[str, Any]:
    """Read the ready file of a worker; empty if it is not written yet."""
    try:
        return cast(dict[str, Any], json.loads(path.read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def _accepts_connection(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=int(_TIMEOUT)).close()
    except psycopg.OperationalError:
        return False
    return True
