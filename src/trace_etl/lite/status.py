"""Status of the stack: read from the record, then checked with each process."""

import socket
from dataclasses import dataclass
from typing import Literal

from trace_etl.lite import connection
from trace_etl.lite.home import Home, explain_os_errors
from trace_etl.lite.processes import lock, orphans, probes, process_tree, record
from trace_etl.lite.processes.record import PartRecord

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
    """What keeps the process from the files of other parts: `landlock`, `uid N`, or `none`."""


@dataclass(frozen=True)
class Status:
    """The current status of the stack."""

    state: Literal["healthy", "degraded", "stopped"]
    home: str
    supervisor_pid: int | None
    started_at: str | None
    parts: tuple[ProcessStatus, ...]
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
    parts = tuple(_check_part(home, part) for part in record.read(home.record))
    healthy = found is not None and all(part.health == "healthy" for part in parts)
    return Status(
        "healthy" if healthy else "degraded",
        str(home.path),
        holder[0],
        found.started_at if found else None,
        parts,
    )


def _check_part(home: Home, part: PartRecord) -> ProcessStatus:
    ready_file = probes.read_ready_file(home.ready_file(part.name))
    spark = ready_file.get("spark") if ready_file.get("pid") == part.pid else None
    return ProcessStatus(
        name=part.name,
        health=_check_health(home, part),
        pid=part.pid,
        where=part.where,
        since=part.since,
        restarts=part.restarts,
        spark=spark,
        isolation=part.isolation,
    )


def _check_health(home: Home, part: PartRecord) -> Health:
    if part.state == "restarting":
        return "restarting"
    if part.pid is None or part.created is None:
        return "stopped"
    if process_tree.find_process(part.pid, part.created) is None:
        return "dead"
    if part.state == "starting":
        return "starting"
    return "healthy" if _accepts_connections(home, part.where) else "silent"


def _accepts_connections(home: Home, where: str) -> bool:
    if where.startswith("https:"):
        return probes.is_healthy(where, str(home.tls / "ca.pem"))
    if not where:
        return True
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except OSError:
        return False
    return True
