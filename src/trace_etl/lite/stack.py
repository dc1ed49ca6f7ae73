"""Start, stop and purge the embedded stack."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from trace_etl.lite import configuration, connection, isolation, jvm, objects, ownership
from trace_etl.lite.configuration import Configuration
from trace_etl.lite.connection import StackConnection
from trace_etl.lite.credentials import certificates, keys, passwords
from trace_etl.lite.home import Home, explain_os_errors
from trace_etl.lite.options import Options
from trace_etl.lite.postgres import databases
from trace_etl.lite.postgres.server import EmbeddedPostgres, ignore_client_settings
from trace_etl.lite.processes import lock, log_view, orphans, process_tree, record
from trace_etl.lite.processes.forks import ServiceForks, make_environment
from trace_etl.lite.processes.record import ServiceRecord
from trace_etl.lite.processes.services import (
    Blueprint,
    StackService,
    inherited_environment,
    list_services,
    postgres_service,
    write_credentials,
)
from trace_etl.lite.processes.supervisor import Supervisor

_SHOW_LOGS_INTERVAL = 0.2
_ROTATE_LOGS_INTERVAL = 30.0
_STOP_TIMEOUT = 40.0


@dataclass(frozen=True)
class Prepared:
    """A stack that is ready to start."""

    connection: StackConnection
    services: Sequence[StackService]


OnUp = Callable[[StackConnection, float], None]
OnProgress = Callable[[int, int], None]
"""Called during the start with the number of processes that are ready, and of all."""
Show = Callable[[log_view.Line], None]
ListServices = Callable[[Blueprint, Mapping[str, str]], Sequence[StackService]]


def up(
    home: Home,
    options: Options,
    *,
    on_up: OnUp,
    on_progress: OnProgress = lambda ready, count: None,
    show: Show | None = None,
    services: ListServices = list_services,
) -> None:
    """Run the stack until a signal stops it. Raises StackError."""
    began = time.monotonic()
    os.umask(0o077)  # inherited by the child processes: only the owner can read their files
    ignore_client_settings()
    with ExitStack() as stack:
        stack.enter_context(home.removed_if_refused())
        home.open()
        stack.enter_context(lock.held(home.lock))
        ended = orphans.clear(home)
        log = log_view.EventLog(home.logs / "supervisor.log")
        follower = log_view.LogFollower(home.logs)
        if ended:
            log.event("orphans_stopped", "warning", processes=ended)
        try:
            with ExitStack() as directory:
                with explain_os_errors(home.path):
                    temporary = directory.enter_context(home.temporary_directory())
                    prepared = prepare(home, options, services, temporary)
                run = _Run(home, prepared, log, follower, show, on_progress)
                asyncio.run(run.run(on_up, began))
        finally:
            home.connection.unlink(missing_ok=True)
            log.close()


def down(home: Home) -> bool:
    """Stop the stack and orphans of an earlier run. Returns whether a stack was running."""
    with explain_os_errors(home.path):
        holder = lock.holder(home.lock)
        if holder is not None:
            _stop_supervisor(*holder)
        orphans.clear(home)
        home.connection.unlink(missing_ok=True)
    return holder is not None


def purge(home: Home) -> None:
    """Stop the stack and delete all its data: databases, objects, keys, logs."""
    down(home)
    EmbeddedPostgres(home.postgres, passfile=home.pgpass).remove()
    home.remove()


def prepare(home: Home, options: Options, services: ListServices, temporary: Path) -> Prepared:
    """Create missing keys, certificates and the data directory, and choose ports and settings."""
    environment = inherited_environment()
    certificates.ensure(home.tls)
    keys.ensure_task_key(home.task_keys)
    keys.ensure_certificate_key(home.certificate_keys)
    keys.ensure_worker_token(home.worker_token)
    keys.ensure_user_token(home.user_token, keys.ensure_user_key(home.user_keys))
    java = jvm.choose(environment)
    saved = configuration.read(home.config)
    configuration.check_runtimes(home.runtimes)
    pools = configuration.parse_rpc_urls(options.rpc_urls) or saved.rpc_pools
    stored = objects.choose(home, options.objects_url, saved.objects_url, environment)
    uid = configuration.parse_postgres_uid(environment)
    postgres = EmbeddedPostgres(home.postgres, passfile=home.pgpass, uid=uid)
    ownership.check(home)
    if not postgres.data.exists():
        configuration.choose_ports(saved.ports, options.ports)  # a refused start makes no database
    postgres.prepare()
    ownership.mark(home)
    ports = configuration.choose_ports(saved.ports, options.ports)
    chosen = Configuration(ports, pools, stored.remote_url)
    configuration.write(home.config, chosen)
    postgres.port = ports["postgres"].number
    server = postgres.server()
    where = connection.describe(
        home,
        api=ports["api"].number,
        internal=ports["internal"].number,
        query=ports["query"].number,
        console=ports["console"].number,
        pid=os.getpid(),
    )
    passwords.ensure(home.pgpass, databases.ROLES)
    write_credentials(home, home.pgpass)
    shared = isolation.shared_access(environment, home.private_paths)
    is_enforced = isolation.is_enforced(environment)
    access = shared if is_enforced else None
    view = shared if not is_enforced and os.geteuid() == 0 else None
    plan = Blueprint(
        home, chosen, where, server, java, temporary, access, stored, options.workers, view
    )
    database = postgres_service(postgres, lambda: databases.provision(server), access)
    return Prepared(where, [database, *services(plan, environment)])


@dataclass
class _Run:
    """One run of a prepared stack, with log rotation and log view."""

    home: Home
    prepared: Prepared
    log: log_view.EventLog
    follower: log_view.LogFollower
    show: Show | None
    on_progress: OnProgress | None
    """None after the start."""

    async def run(self, on_up: OnUp, began: float) -> None:
        """Supervise the processes until a signal; rotate and show their logs."""
        forks = self._open_forks()
        supervisor = Supervisor(
            self.prepared.services, self.home.logs, self.log, self._record, forks=forks
        )
        _stop_on_signals(supervisor)
        helpers = [
            asyncio.create_task(self._rotate_logs()),
            asyncio.create_task(self._follow_logs()),
        ]
        try:
            await supervisor.run(lambda: self._announce(on_up, began))
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            if forks is not None:
                forks.close()
            self._show_new_lines()

    def _open_forks(self) -> ServiceForks | None:
        """Start the fork server, which imports modules while Postgres starts."""
        forked = [service.argv[-1] for service in self.prepared.services if service.is_forked]
        modules = list(dict.fromkeys(forked))
        if not modules:
            return None
        environment = make_environment(inherited_environment(), self.home.path)
        forks = ServiceForks(modules, environment, self.home.logs / "supervisor.log")
        forks.open()
        return forks

    def _record(self, services: Sequence[ServiceRecord]) -> None:
        record.write(self.home.record, services)
        if self.on_progress is not None:
            ready = sum(service.state == "ready" for service in services)
            self.on_progress(ready, len(services))

    def _announce(self, on_up: OnUp, began: float) -> None:
        self.on_progress = None
        where = self.prepared.connection
        connection.write(self.home.connection, where)
        seconds = round(time.monotonic() - began, 2)
        self.log.event("stack_up", seconds=seconds, api=where.api_url)
        self._show_new_lines()
        on_up(where, seconds)

    async def _follow_logs(self) -> None:
        while True:
            self._show_new_lines()
            await asyncio.sleep(_SHOW_LOGS_INTERVAL)

    async def _rotate_logs(self) -> None:
        while True:
            await asyncio.sleep(_ROTATE_LOGS_INTERVAL)
            try:
                log_view.rotate(self.home.logs)
            except OSError as error:
                self.log.event("logs_not_rotated", "error", error=str(error))

    def _show_new_lines(self) -> None:
        """Show new log lines. A closed terminal ends the log view, not the stack."""
        if self.show is None:
            return
        try:
            for line in self.follower.lines():
                self.show(line)
        except BrokenPipeError:
            self.show = None
            self.log.event("log_view_closed")


def _stop_on_signals(supervisor: Supervisor) -> None:
    loop = asyncio.get_running_loop()
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(sent) is not signal.SIG_IGN:  # nohup ignores SIGHUP on purpose
            loop.add_signal_handler(sent, supervisor.request_stop)


def _stop_supervisor(pid: int, created: float) -> None:
    supervisor = process_tree.find_process(pid, created)
    if supervisor is None:
        return
    process_tree.end([supervisor], signal.SIGTERM, signal.SIGKILL, grace=_STOP_TIMEOUT)
