"""Status of the stack: read from the record, then checked with each process."""

import socket
from dataclasses import dataclass
from typing import Literal

from trace_etl.lite import connection
from trace_etl.lite.home import Home, explain_os_errors
from trace_etl.lite.processes import lock, orphans, probes, process_tree, record
from trace_etl.lite.processes.record import ServiceRecord

Health = Literal["healthy", "starting", "restarting", "silent", "dead", "stopped"]


@dataclass(frozen=True)
class ProcessStatus:
    """The current status of one process."""

    name: str
    health: Health
    pid: int | None
    where: str
    since: str | None
    restarts: int
    spark: str | None
    isolation: str = "none"
    """What keeps the process from the files of other services: `landlock`, `uid N`, or `none`."""
    warning: str | None = None
    """What its operators may use beyond their tasks, and why."""


@dataclass(frozen=True)
class Status:
    """The current status of the stack."""

    state: Literal["healthy", "degraded", "stopped"]
    home: str
    supervisor_pid: int | None
    started_at: str | None
    parts: tuple[ProcessStatus, ...]
    """The services. Scripts know the field by this name, from `trace status --json`."""
    orphans: tuple[int, ...] = ()


def check(home: Home) -> Status:
    """Check every process. Changes nothing. Raises HomeUnusable if the home cannot be read."""
    with explain_os_errors(home.path):
        return _check(home)


def _check(home: Home) -> Status:
    holder = lock.holder(home.lock)
    if holder is None:
        found = tuple(process.pid for process in orphans.find(home))
        return Status("stopped", str(home.path), None, None, (), found)
    found = connection.read(home.connection)
    services = tuple(_check_service(home, service) for service in record.read(home.record))
    healthy = found is not None and all(service.health == "healthy" for service in services)
    return Status(
        "healthy" if healthy else "degraded",
        str(home.path),
        holder[0],
        found.started_at if found else None,
        services,
    )


def _check_service(home: Home, service: ServiceRecord) -> ProcessStatus:
    ready_file = probes.read_ready_file(home.ready_file(service.name))
    spark = ready_file.get("spark") if ready_file.get("pid") == service.pid else None
    return ProcessStatus(
        name=service.name,
        health=_check_health(home, service),
        pid=service.pid,
        where=service.where,
        since=service.since,
        restarts=service.restarts,
        spark=spark,
        isolation=service.isolation,
        warning=service.warning,
    )


def _check_health(home: Home, service: ServiceRecord) -> Health:
    if service.state == "restarting":
        return "restarting"
    if service.pid is None or service.created is None:
        return "stopped"
    if process_tree.find_process(service.pid, service.created) is None:
        return "dead"
    if service.state == "starting":
        return "starting"
    return "healthy" if _accepts_connections(home, service.where) else "silent"


def _accepts_connections(home: Home, where: str) -> bool:
    if where.startswith(("http:", "https:")):
        return probes.is_healthy(where, str(home.tls / "ca.pem"))
    if not where:
        return True
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except OSError:
        return False
    return True
