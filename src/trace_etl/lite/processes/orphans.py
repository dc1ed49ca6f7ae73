"""Find and stop orphans: processes of a run whose supervisor has ended."""

import signal

import psutil

from trace_etl.lite.home import Home
from trace_etl.lite.processes import process_tree, record
from trace_etl.lite.processes.record import ServiceRecord

_GRACE = 6.0


def find(home: Home) -> list[psutil.Process]:
    """Find running processes of the recorded run, without Postgres. Call it only if no supervisor runs."""
    found: list[psutil.Process] = []
    for service in record.read(home.record):
        if service.name != "postgres":
            found += _find_tree(home, service)
    return found


def clear(home: Home) -> int:
    """Stop all orphans and their Postgres server; return the number of orphans."""
    from trace_etl.lite.postgres.server import EmbeddedPostgres  # `trace status` needs no psycopg

    found = find(home)
    process_tree.end(found, signal.SIGTERM, signal.SIGKILL, grace=_GRACE)
    EmbeddedPostgres(home.postgres).evict()
    return len(found)


def _find_tree(home: Home, service: ServiceRecord) -> list[psutil.Process]:
    if service.pid is None or service.created is None:
        return []
    if process_tree.is_reused_pid(service.pid, service.created):
        return []  # the session belongs to the new process, too
    leader = process_tree.find_process(service.pid, service.created)
    tree = [leader, *process_tree.session_members(service.pid)]
    # The record may be a copy: the processes that it names then belong to the original home.
    return [p for p in tree if p is not None and _belongs_to(home, p)]


def _belongs_to(home: Home, process: psutil.Process) -> bool:
    try:
        return process.environ().get("TRACE_HOME") == str(home.path)
    except psutil.Error:
        return False
