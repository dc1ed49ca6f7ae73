"""Databases for tests: one server per test process, one copy of a migrated template per test."""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg

from support.waiting import eventually
from trace_etl.data import migrations as data_migrations
from trace_etl.lite.credentials import passwords
from trace_etl.lite.postgres import databases
from trace_etl.lite.postgres.server import SUPERUSER, EmbeddedPostgres, Server
from trace_etl.queues.pgqueue import PgQueue
from trace_etl.state.db import migrations

# Nobody pulls the plug on a test: it may die with the machine, not with a process.
_HASTY = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_compression": "off",
    "max_wal_size": "256MB",
    "scram_iterations": "1",
}
_MEMORY = Path("/dev/shm")
_PLENTY = 2 << 30
_OURS = "trace-tests-"


@dataclass(frozen=True)
class Templates:
    server: Server
    state: str
    data: str


@contextmanager
def serving(directory: Path) -> Generator[Templates]:
    """A server with both databases provisioned and migrated, ready to be copied."""
    _move_to_memory(directory)
    embedded = EmbeddedPostgres(directory, passfile=directory.parent / "pgpass", settings=_HASTY)
    try:
        server = embedded.start()
        _hash_anew(server)
        dsns = databases.provision(server, state="template_state", data="template_data")
        migrations.apply(dsns.state)
        data_migrations.apply(dsns.data)
        PgQueue(dsns.queue).prepare()
        yield Templates(server, "template_state", "template_data")
    finally:
        embedded.stop()
        embedded.remove()


def _hash_anew(server: Server) -> None:
    """The superuser's password, which initdb hashed before our settings counted."""
    password = passwords.read(server.passfile)[SUPERUSER]
    with psycopg.connect(server.admin_dsn(), autocommit=True) as conn:
        conn.execute(f"ALTER ROLE {SUPERUSER} PASSWORD '{password}'")


def _move_to_memory(directory: Path) -> None:
    """Link it to a place in memory, if there is plenty: a copy takes a tenth of the time there."""
    if not _MEMORY.is_dir() or not os.access(_MEMORY, os.W_OK):
        return
    found = os.statvfs(_MEMORY)
    # As root the server's programs may be copied there, too.
    if found.f_flag & os.ST_NOEXEC or found.f_bavail * found.f_frsize < _PLENTY:
        return
    _sweep()
    place = Path(tempfile.mkdtemp(prefix=f"{_OURS}{os.getpid()}-", dir=_MEMORY))
    place.chmod(0o711)
    directory.symlink_to(place)


def _sweep() -> None:
    """Remove what killed runs left. A server that still ran there ends when its files are gone."""
    for place in _MEMORY.glob(f"{_OURS}*-*"):
        owner = place.name.removeprefix(_OURS).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(place, ignore_errors=True)  # another user's, or swept by somebody else


@contextmanager
def copied(templates: Templates) -> Generator[databases.Dsns]:
    """Fresh databases, dropped afterwards."""
    mark = uuid4().hex[:12]
    state, data = f"state_{mark}", f"data_{mark}"
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
        databases.drop_database(server, state)
        databases.drop_database(server, data)


def sql(dsn: str, query: str, values: object = None) -> list[tuple]:
    """Run one statement and return its rows, if it has any."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(query, values)
        return cursor.fetchall() if cursor.description else []


def until_blocked(dsn: str, sessions: int) -> None:
    """Return once so many sessions wait for a lock."""
    waiting = """
        SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock'
    """
    with psycopg.connect(dsn, autocommit=True) as conn:
        eventually(
            lambda: conn.execute(waiting).fetchone()[0] >= sessions, f"{sessions} sessions wait"
        )
