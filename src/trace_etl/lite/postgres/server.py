"""The embedded Postgres server: one data directory, one port on loopback, one child process."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from trace_etl.lite.credentials import passwords, private_files
from trace_etl.lite.errors import HomeUnusable, PortTaken, PostgresFailed, StackError
from trace_etl.lite.postgres import binaries
from trace_etl.lite.postgres.account import Account, postgres_account
from trace_etl.lite.processes import process_tree
from trace_etl.lite.processes.ports import LOOPBACK, free_port, holder, is_free

SUPERUSER = "trace_admin"
# Durable, and small enough for a laptop that also runs a JVM.
SETTINGS: Mapping[str, str] = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_level": "replica",  # what `trace backup` needs to copy a running server
    "max_wal_senders": "4",
    "max_logical_replication_workers": "0",
    "wal_compression": "on",
    "min_wal_size": "80MB",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "15min",
    "io_method": "sync",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "autovacuum_naptime": "15s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "log_min_error_statement": "panic",  # no SQL text in logs
    "log_line_prefix": "%m ",
}
_SINCE_18 = frozenset({"io_method"})
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
_SOFTWARE = Path("/var/lib/trace-postgres")  # copies of the binaries, no data
# Linux resolves it without access to the parents of the directory, which may be private to root.
_WORKING_DIRECTORY = "/proc/self/cwd"
_POLL = 0.02


@dataclass(frozen=True)
class Server:
    """The address and the password file of a server."""

    port: int
    passfile: Path
    host: str = LOOPBACK

    def dsn(self, role: str, database: str) -> str:
        """Make a connection string without a secret; the password is in the password file."""
        return make_conninfo(
            host=self.host,
            port=self.port,
            dbname=database,
            user=role,
            passfile=str(self.passfile),
            # A program that takes the port while Postgres restarts must not get a clear password.
            require_auth="scram-sha-256",
        )

    def admin_dsn(self, database: str = "postgres") -> str:
        """Make the connection string of the superuser."""
        return self.dsn(SUPERUSER, database)


def ignore_client_settings() -> None:
    """Remove the settings of libpq from this process and its children: they are for other servers.

    `PGPASSWORD`, for example, takes precedence over the password file.
    """
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]


@dataclass
class EmbeddedPostgres:
    """A Postgres server in `directory`, whose parent must exist.

    `passfile` defaults to `pgpass` beside it. As root, the server runs as `uid`, which defaults to an id
    of its own. This id owns the data directory and cannot enter its parents: the server starts inside.
    """

    directory: Path
    port: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    passfile: Path = field(default=Path())
    uid: int | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _account: Account | None = field(default=None, init=False, repr=False)
    _software: binaries.Software | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.passfile == Path():
            self.passfile = self.directory.with_name("pgpass")

    @property
    def account(self) -> Account:
        """The account of the server process."""
        self._account = self._account or postgres_account(self.directory, self.uid)
        return self._account

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.directory / "data"

    @property
    def log(self) -> Path:
        """The log file of a server started with `start`."""
        return self.directory.with_name(f"{self.directory.name}.log")

    def prepare(self) -> None:
        """Create the data directory and passwords if needed, and find the software."""
        self._move_linked_data()
        private_files.make_directory(self.directory)
        known = SUPERUSER in passwords.read(self.passfile)
        password = passwords.ensure(self.passfile, [SUPERUSER])[SUPERUSER]
        major = self._read_data_version()
        found = binaries.find(major)
        self._software = binaries.made_reachable(found, self.account, _SOFTWARE)
        if major is not None and self.data.stat().st_uid != self.account.uid:
            # The home was copied or moved, or an earlier release ran Postgres as `nobody`.
            self.evict()
            self.account.take(self.data)
        if major is None:
            self._initialise(self._software, password)
        elif not known:
            self._reset_password(self._software, password)
        self.evict()

    def command(self) -> list[str]:
        """Return the command line of the server. Needs `prepare` and a port."""
        assert self._software is not None, "call prepare() first"
        options = {**SETTINGS, **self.settings, "port": str(self.port)}
        if self._software.major < 18:
            options = {k: v for k, v in options.items() if k not in _SINCE_18}
        pairs = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        return [self._software.binary("postgres"), "-D", _WORKING_DIRECTORY, *pairs]

    @property
    def environment(self) -> dict[str, str]:
        """The complete environment of the server process."""
        return dict(_ENVIRONMENT)

    def start(self, *, timeout: float = 30.0) -> Server:
        """Start the server as a child process and wait until it accepts connections.

        It ends with `stop` or with this process. Without a port, it picks a free one, and another
        one if a different program takes that port first.
        """
        self.prepare()
        deadline = time.monotonic() + timeout
        if self.port is not None:
            return self._start_once(deadline)
        while True:
            self.port = free_port()
            try:
                return self._start_once(deadline)
            except PortTaken:
                if time.monotonic() > deadline:
                    raise

    def stop(self, *, grace: float = 10.0) -> None:
        """Stop the server: fast shutdown, then immediate shutdown, then SIGKILL."""
        if self._process is None:
            return
        for sent in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            self._process.send_signal(sent)
            try:
                self._process.wait(grace)
                break
            except subprocess.TimeoutExpired:
                continue
        self._process = None

    def evict(self, *, grace: float = 10.0) -> None:
        """Stop an orphaned server of this data directory; delete a stale pid file."""
        left = _find_postmaster(self.data)
        if left is None:
            # Another program may have the pid now, which would keep Postgres from starting.
            (self.data / "postmaster.pid").unlink(missing_ok=True)
            return
        process_tree.end([left], signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, grace=grace)

    def remove(self) -> None:
        """Stop the server and delete its data. Never deletes anything outside of `directory`."""
        self.stop()
        if self.directory.is_symlink():
            self.directory.unlink()
        elif self.directory.exists():
            self.evict()
            shutil.rmtree(self.directory, ignore_errors=True)
        self.passfile.unlink(missing_ok=True)
        self.log.unlink(missing_ok=True)

    def server(self) -> Server:
        """Return the address of the server, running or not."""
        assert self.port is not None
        return Server(self.port, self.passfile)

    def _move_linked_data(self) -> None:
        """Replace a link to the data by the data. An earlier release that ran as root made such a link.

        Raises HomeUnusable if the data is gone or in use, because the link is a copy of another home's.
        """
        if not self.directory.is_symlink():
            return
        linked = self.directory.resolve() / "data"
        if not (linked / "PG_VERSION").exists():
            raise HomeUnusable(
                f"the database of this home is missing: {self.directory} links to {linked.parent}, "
                "which does not exist or was moved into another home",
                f"restore {linked.parent}; to start with an empty database, delete the link",
            )
        if (running := _find_postmaster(linked)) is not None:
            raise HomeUnusable(
                f"the database of this home is in use by process {running.pid}, perhaps of the home "
                "that this one was copied from",
                "stop that stack first; the database then moves into the home that starts first",
            )
        partial = self.directory.with_name(f"{self.directory.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        private_files.make_directory(partial)
        shutil.copytree(linked, partial / "data", symlinks=True)
        self.directory.unlink()
        partial.rename(self.directory)
        shutil.rmtree(linked.parent, ignore_errors=True)

    def _read_data_version(self) -> int | None:
        mark = self.data / "PG_VERSION"
        return int(mark.read_text()) if mark.exists() else None

    def _initialise(self, postgres: binaries.Software, password: str) -> None:
        """Run initdb beside the data directory, then rename: a killed initdb leaves no partial data."""
        partial = self.data.with_name("data.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        os.chown(partial, self.account.uid, self.account.gid)
        secret = self.directory / "initdb.secret"
        private_files.write(secret, password)
        os.chown(secret, self.account.uid, self.account.gid)
        self.directory.chmod(0o711)  # so that the account can reach the secret
        try:
            self._run(
                [
                    *(postgres.binary("initdb"), "--pgdata", _WORKING_DIRECTORY),
                    *("--username", SUPERUSER, "--pwfile", f"../{secret.name}"),
                    *("--auth-host", "scram-sha-256", "--auth-local", "reject"),
                    *("--encoding", "UTF8", "--locale", "C"),
                    *(["--no-sync"] if self.settings.get("fsync") == "off" else []),
                ],
                partial,
            )
        finally:
            self.directory.chmod(0o700)
            secret.unlink()
        partial.rename(self.data)

    def _reset_password(self, postgres: binaries.Software, password: str) -> None:
        """Set a new password of the superuser after the password file was lost."""
        self.evict()
        statement = f"ALTER ROLE {SUPERUSER} PASSWORD '{password}'\n"
        command = [postgres.binary("postgres"), "--single", "-D", _WORKING_DIRECTORY, "postgres"]
        self._run(command, self.data, statement)

    def _run(self, command: list[str], directory: Path, stdin: str = "") -> None:
        done = self.account.run(
            command, stdin=stdin, environment=self.environment, directory=directory
        )
        if done.returncode != 0:
            raise PostgresFailed(
                f"{Path(command[0]).name} failed: {done.stderr.strip()[-800:]}",
                f"free disk space or permissions on {self.directory}, then retry",
            )

    def _start_once(self, deadline: float) -> Server:
        self.log.write_bytes(b"")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                process_tree.bound(
                    self.command(),
                    sent=signal.SIGINT,
                    account=self.account,
                    directory=str(self.data),
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )
        return self._wait_until_ready(deadline)

    def _wait_until_ready(self, deadline: float) -> Server:
        assert self._process is not None
        server = self.server()
        while True:
            try:
                psycopg.connect(server.admin_dsn(), connect_timeout=2).close()
                return server
            except psycopg.OperationalError as refused:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise self._describe_failed_start(server.port) from refused
            time.sleep(_POLL)

    def _describe_failed_start(self, port: int) -> StackError:
        tail = self.log.read_text(errors="replace")[-800:].strip()
        if "could not bind" in tail and not is_free(port):
            return PortTaken(f"port {port} (postgres) is taken by {holder(port)}", "choose another")
        return PostgresFailed(f"Postgres did not start: {tail}")


def _find_postmaster(data: Path) -> psutil.Process | None:
    """Return the server that runs in a data directory. The pid file may be stale, or a copy."""
    try:
        process = psutil.Process(int((data / "postmaster.pid").read_text().partition("\n")[0]))
        runs_here = Path(process.cwd()) == data.resolve()
    except (FileNotFoundError, ValueError, psutil.Error):
        return None
    return process if runs_here and process_tree.is_running(process) else None
