"""A consistent copy of the Postgres server of a home, made while it runs.

`pg_basebackup` copies the files of both databases and the WAL written meanwhile. Starting the copy replays
this WAL, so both databases are as of one moment: the end of the copy.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from trace_etl.lite import configuration
from trace_etl.lite.backup import contents
from trace_etl.lite.backup.contents import Conn
from trace_etl.lite.backup.reporting import Report
from trace_etl.lite.credentials import private_files
from trace_etl.lite.errors import BackupUnusable, PostgresFailed
from trace_etl.lite.home import Home
from trace_etl.lite.postgres import binaries
from trace_etl.lite.postgres.databases import DATA, STATE
from trace_etl.lite.postgres.server import EmbeddedPostgres, Server, ignore_client_settings
from trace_etl.lite.processes import lock

_PROGRESS = re.compile(rb"(\d+)/(\d+) kB")


@contextmanager
def running_server(home: Home) -> Generator[Server]:
    """Return the server of a home. If the stack is stopped, start its Postgres for the block."""
    if not (home.postgres / "data" / "PG_VERSION").exists():
        raise BackupUnusable(
            f"{home.path} has no database", "name a home with --home, or TRACE_HOME"
        )
    ignore_client_settings()
    if lock.holder(home.lock) is not None:
        port = configuration.read(home.config).ports["postgres"].number
        yield Server(port, home.pgpass)
        return
    with lock.held(home.lock):
        postgres = EmbeddedPostgres(home.postgres, passfile=home.pgpass)
        try:
            yield postgres.start()
        finally:
            postgres.stop()


@contextmanager
def connected(server: Server) -> Generator[tuple[Conn, Conn]]:
    """Connect to both databases as the superuser."""
    with (
        contents.connect(server.admin_dsn(STATE)) as state,
        contents.connect(server.admin_dsn(DATA)) as data,
    ):
        yield state, data


@contextmanager
def sweeps_held(server: Server) -> Generator[None]:
    """Keep the objects of the snapshot: the Dispatcher deletes none during the block."""
    try:
        conn = contents.connect(server.admin_dsn(STATE))
    except psycopg.OperationalError as error:
        raise BackupUnusable(
            f"cannot connect to Postgres: {error}", "see `trace status`"
        ) from error
    with conn:
        if not contents.hold_sweeps(conn):
            raise BackupUnusable(
                "another backup of this home is running", "wait until it has ended"
            )
        yield


def copy_server(source: Server, directory: Path, major: int, report: Report) -> None:
    """Copy a running server to `directory`. Raises BackupUnusable or PostgresFailed."""
    private_files.make_directory(directory)
    command = [
        *(binaries.find(major).binary("pg_basebackup"), "--dbname", source.admin_dsn()),
        *("--pgdata", str(directory / "data"), "--checkpoint=fast", "--wal-method=stream"),
        *("--no-manifest", "--progress"),
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as done:
        try:
            text = _follow(done, report)
        except BaseException:
            done.kill()
            raise
    if done.returncode == 0:
        return
    if "max_wal_senders" in text:
        raise BackupUnusable(
            "this stack was started by a release without backups",
            "restart it: trace down, then trace up",
        )
    raise PostgresFailed(f"pg_basebackup failed: {text.strip()[-800:]}", "see postgres.log")


def _follow(process: subprocess.Popen[bytes], report: Report) -> str:
    """Report progress until the program ends. Returns its other output."""
    assert process.stderr is not None
    text, line = b"", b""
    while chunk := os.read(process.stderr.fileno(), 4096):
        *complete, line = re.split(rb"[\r\n]", line + chunk)
        for part in complete:
            if match := _PROGRESS.search(part):
                report("databases", int(match[1]) * 1024, int(match[2]) * 1024)
            else:
                text += part + b"\n"
    process.wait()
    return (text + line).decode(errors="replace")


@contextmanager
def started_copy(directory: Path, passfile: Path) -> Generator[Server]:
    """Start a copied server, which replays its WAL, and stop it cleanly after the block."""
    ignore_client_settings()
    postgres = EmbeddedPostgres(directory, passfile=passfile)
    try:
        yield postgres.start(timeout=600)
    finally:
        postgres.stop(grace=60)


def remove_transient_files(data: Path) -> None:
    """Remove files of a stopped server that a restored one does not need."""
    for name in ("postmaster.opts", "postmaster.pid", "backup_label.old", "tablespace_map.old"):
        (data / name).unlink(missing_ok=True)
    shutil.rmtree(data / "pg_stat_tmp", ignore_errors=True)
    (data / "pg_stat_tmp").mkdir(mode=0o700)
