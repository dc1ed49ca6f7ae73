"""Whether a part answers: over HTTPS, as a Postgres server, or by a file it writes."""

import http.client
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import psutil
import psycopg

# Asked with the child's pid, so that an answer of an earlier child does not count.
Probe = Callable[[int], bool]
_PATIENCE = 2.0


def https(ca: str, *urls: str) -> Probe:
    """Ready when every URL's /healthz answers 200 under our authority."""
    return lambda pid: all(is_healthy(url, ca) for url in urls)


def postgres(dsn: str) -> Probe:
    """Ready when a session can be opened."""
    return lambda pid: _accepts(dsn)


def announced(ready_file: Path) -> Probe:
    """Ready when the child of that pid has written its ready file."""
    return lambda pid: read_ready_file(ready_file).get("pid") == pid


def alive(pid: int) -> bool:
    """Ready as soon as it runs: a part without a listener."""
    return psutil.pid_exists(pid)


def is_healthy(url: str, ca: str) -> bool:
    """Whether the service at this URL answers its health check, verified by the authority."""
    address = urlsplit(url)
    try:
        context = ssl.create_default_context(cafile=ca)
        connection = http.client.HTTPSConnection(
            address.hostname or "", address.port, timeout=_PATIENCE, context=context
        )
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == http.HTTPStatus.OK
        finally:
            connection.close()
    except (OSError, http.client.HTTPException):
        return False


def read_ready_file(path: Path) -> dict[str, Any]:
    """What a worker says of itself; empty when it has said nothing yet."""
    try:
        return cast(dict[str, Any], json.loads(path.read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def _accepts(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=int(_PATIENCE)).close()
    except psycopg.OperationalError:
        return False
    return True
