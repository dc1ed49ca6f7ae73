"""Databases for tests: one server per test process, one copy of a migrated template per test."""

import os
import select
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

import psutil
import psycopg
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from support.waiting import eventually
from trace_etl.data import migrations as data_migrations
from trace_etl.lite.credentials import passwords
from trace_etl.lite.postgres import databases
from trace_etl.lite.postgres.server import SUPERUSER, EmbeddedPostgres, Server
from trace_etl.queues.pgqueue import PgQueue
from trace_etl.state.db import migrations

# Test databases need to survive a process crash, but not a machine crash.
_FAST_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_compression": "off",
    "max_wal_size": "256MB",
    "scram_iterations": "1",
}
# Rows of Postgres state hold transaction numbers. An upgrade in place keeps the server's counter; a test
# that restores a dump moves the counter past the numbers in the dump.
ADVANCE_TRANSACTIONS = """
DO $$
DECLARE newest bigint := (SELECT max(changed_xid::text::bigint) FROM tasks);
BEGIN
    WHILE pg_current_xact_id()::text::bigint <= newest + 100 LOOP COMMIT; END LOOP;
END $$
"""
_MEMORY = Path("/dev/shm")
_MIN_FREE_BYTES = 2 << 30
_PREFIX = "trace-tests-"


@dataclass(frozen=True)
class Templates:
    server: Server
    state: str
    data: str


@contextmanager
def postgres_server(directory: Path) -> Generator[Templates]:
    """Run a server with both databases provisioned and migrated, to be used as templates."""
    fast = _find_memory(directory)
    embedded = EmbeddedPostgres(fast, passfile=directory.parent / "pgpass", settings=_FAST_SETTINGS)
    try:
        server = embedded.start()
        _rehash_superuser_password(server)
        dsns = databases.provision(server, state="template_state", data="template_data")
        migrations.apply(dsns.state)
        data_migrations.apply(dsns.data)
        PgQueue(dsns.queue).prepare()
        yield Templates(server, "template_state", "template_data")
    finally:
        embedded.stop()
        embedded.remove()
        if fast != directory:
            fast.parent.rmdir()


def _rehash_superuser_password(server: Server) -> None:
    """Hash the superuser's password again: initdb hashed it before our settings applied."""
    password = passwords.read(server.passfile)[SUPERUSER]
    with psycopg.connect(server.admin_dsn(), autocommit=True) as conn:
        conn.execute(f"ALTER ROLE {SUPERUSER} PASSWORD '{password}'")


def _find_memory(directory: Path) -> Path:
    """Return a directory in memory if there is enough: copying a database is ten times faster there."""
    if not _MEMORY.is_dir() or not os.access(_MEMORY, os.W_OK):
        return directory
    memory = os.statvfs(_MEMORY)
    # When run as root, the server's programs may be copied there too, and must be executable.
    if memory.f_flag & os.ST_NOEXEC or memory.f_bavail * memory.f_frsize < _MIN_FREE_BYTES:
        return directory
    _remove_leftovers()
    place = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_MEMORY))
    place.chmod(0o711)
    return place / directory.name


def _remove_leftovers() -> None:
    """Remove directories of killed runs. A server that still runs there ends without its files."""
    for place in _MEMORY.glob(f"{_PREFIX}*-*"):
        owner = place.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(
                place, ignore_errors=True
            )  # may belong to another user, or be removed concurrently


@contextmanager
def copied(templates: Templates) -> Generator[databases.Dsns]:
    """Create fresh databases from the templates, and drop them afterwards."""
    suffix = uuid4().hex[:12]
    state, data = f"state_{suffix}", f"data_{suffix}"
    server = templates.server
    databases.create_database(
        server, state, owner=databases.STATE, connect=[databases.READER], template=templates.state
    )
    databases.create_database(
        server,
        data,
        owner=databases.DATA,
        connect=[databases.QUEUE, databases.DATA_READER],
        template=templates.data,
    )
    try:
        yield databases.dsns(server, state=state, data=data)
    finally:
        drop_database(server, state)
        drop_database(server, data)


def drop_database(server: Server, name: str) -> None:
    """Drop a database and end the connections to it."""
    with psycopg.connect(server.admin_dsn(), autocommit=True) as conn:
        conn.execute("SET client_min_messages = warning")
        conn.execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(name)))


def sql(dsn: str, query: str, values: object = None) -> list[tuple]:
    """Run one statement. Returns its rows, if any."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(query, values)
        return cursor.fetchall() if cursor.description else []


class KeptConnection:
    """Runs statements on one connection: a new one for each would use most of their processor time."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._kept: psycopg.Connection[dict[str, Any]] | None = None
        self._lock = Lock()

    def run(self, query: str, values: object = None) -> list[dict[str, Any]]:
        """Run one statement. Returns its rows, if any."""
        if not self._lock.acquire(blocking=False):  # the statement of another thread may wait
            with self._connect() as conn:
                return _run(conn, query, values)
        try:
            if self._kept is None or _is_ended(self._kept):
                self.close()
                self._kept = self._connect()
            return _run(self._kept, query, values)
        finally:
            self._lock.release()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _connect(self) -> psycopg.Connection[dict[str, Any]]:
        return psycopg.connect(
            self._dsn, autocommit=True, row_factory=dict_row, prepare_threshold=None
        )


def _is_ended(conn: psycopg.Connection[Any]) -> bool:
    """Return whether an idle connection has ended: the server then has sent the reason."""
    return conn.closed or bool(select.select([conn.fileno()], [], [], 0)[0])


def _run(conn: psycopg.Connection[dict[str, Any]], query: str, values: object) -> list[Any]:
    cursor = conn.execute(query, values)
    return cursor.fetchall() if cursor.description else []


def until_blocked(dsn: str, sessions: int) -> None:
    """Wait until this many sessions wait for a lock."""
    waiting = """
        SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock'
    """
    with psycopg.connect(dsn, autocommit=True) as conn:
        eventually(
            lambda: conn.execute(waiting).fetchone()[0] >= sessions, f"{sessions} sessions wait"
        )
