"""Processes of a run whose supervisor is gone: found by its record, and ended."""

import signal

import psutil

from trace_etl.lite.home import Home
from trace_etl.lite.postgres.server import EmbeddedPostgres
from trace_etl.lite.processes import process_tree, record
from trace_etl.lite.processes.record import PartRecord

_GRACE = 6.0


def find(home: Home) -> list[psutil.Process]:
    """Live processes of the recorded run, without Postgres. Only for when no supervisor runs."""
    found: list[psutil.Process] = []
    for part in record.read(home.record):
        if part.name != "postgres":
            found += _family(home, part)
    return found


def clear(home: Home) -> int:
    """End them all, and the Postgres server they used; return how many there were."""
    left = find(home)
    process_tree.end(left, signal.SIGTERM, signal.SIGKILL, grace=_GRACE)
    EmbeddedPostgres(home.postgres).evict()
    return len(left)


def _family(home: Home, part: PartRecord) -> list[psutil.Process]:
    if part.pid is None or part.created is None:
        return []
    if process_tree.is_stranger(part.pid, part.created):
        return []  # and so is its session
    leader = process_tree.same_process(part.pid, part.created)
    members = [p for p in process_tree.session_members(part.pid) if _is_of(home, p)]
    return [leader, *members] if leader else members


def _is_of(home: Home, process: psutil.Process) -> bool:
    try:
        return process.environ().get("TRACE_HOME") == str(home.path)
    except psutil.Error:
        return False
