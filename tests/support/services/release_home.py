"""The home of a stopped stack, as the last release left it on disk.

`tests/e2e/release/home.tar.gz` was made by that release's own command line, as root:

    trace up --detach --rpc-url …           a development chain
    trace deploy tests/e2e/release/kept.yaml
    trace trigger kept request --range 0-59 --wait
    trace trigger kept request --range 60-79
    trace down                              before the task of `alerts` for 60-79 ran

It has the files of the home without logs and caches, and `cluster.sql`, the output of `pg_dumpall --inserts
--rows-per-insert=500`: a cluster is too large to be stored. `unpack` restores the cluster where that release
had it: outside of the home, behind a link.
"""

import os
import subprocess
import tarfile
from pathlib import Path

import psycopg

from support.services.postgres import ADVANCE_TRANSACTIONS
from trace_etl.lite.postgres import binaries
from trace_etl.lite.postgres.server import SUPERUSER, EmbeddedPostgres

RELEASE = Path(__file__).parents[2] / "e2e" / "release"


def unpack(home: Path) -> None:
    """Lay out the home, which must be named `home`. `home/postgres` links to its cluster."""
    with tarfile.open(RELEASE / "home.tar.gz") as archive:
        archive.extractall(home.parent, filter="data")
    outside = home.with_name(f"{home.name}-postgres")
    cluster = EmbeddedPostgres(outside, passfile=home / "pgpass")
    server = cluster.start()
    try:
        _restore(home, server.port)
        with psycopg.connect(server.admin_dsn("trace_state"), autocommit=True) as conn:
            conn.execute(ADVANCE_TRANSACTIONS)
    finally:
        cluster.stop()
    (home / "postgres").symlink_to(outside)


def _restore(home: Path, port: int) -> None:
    psql = Path(binaries.find(None).binary("postgres")).with_name("psql")
    dump = (home.parent / "cluster.sql").read_text().replace(f"CREATE ROLE {SUPERUSER};", "")
    command = [psql, "-h", "127.0.0.1", "-p", str(port), "-U", SUPERUSER, "-d", "postgres"]
    done = subprocess.run(
        [*command, "-q", "-v", "ON_ERROR_STOP=1"],
        input=dump,
        text=True,
        capture_output=True,
        env={**os.environ, "PGPASSFILE": str(home / "pgpass")},
    )
    assert done.returncode == 0, done.stderr
