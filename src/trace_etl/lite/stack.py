"""The embedded stack as a whole: up, down, status."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trace_etl.lite import configuration, connection, jvm
from trace_etl.lite.configuration import Configuration
from trace_etl.lite.connection import StackConnection
from trace_etl.lite.credentials import certificates, keys
from trace_etl.lite.home import Home, check_space, explained
from trace_etl.lite.options import Options
from trace_etl.lite.postgres import databases
from trace_etl.lite.postgres.server import EmbeddedPostgres
from trace_etl.lite.processes import lock, log_view, orphans, process_tree, record
from trace_etl.lite.processes.parts import (
    Blueprint,
    Part,
    inherited_environment,
    postgres_part,
    service_parts,
)
from trace_etl.lite.processes.record import PartRecord
from trace_etl.lite.processes.supervisor import Supervisor

_FOLLOW_EVERY = 0.2
_ROTATE_EVERY = 30.0
_STOP_WITHIN = 40.0


@dataclass(frozen=True)
class Prepared:
    """A stack that could start now."""

    connection: StackConnection
    parts: Sequence[Part]


OnUp = Callable[[StackConnection, float], None]
Show = Callable[[log_view.Line], None]
Services = Callable[[Blueprint, Mapping[str, str]], Sequence[Part]]


def up(
    home: Home,
    options: Options,
    *,
    on_up: OnUp,
    show: Show | None = None,
    services: Services = service_parts,
) -> None:
    """Run the stack until a signal stops it. Raises StackError with what to do."""
    began = time.monotonic()
    os.umask(0o077)  # ours and our children's: what they write is the owner's alone
    home.open()
    with lock.held(home.lock):
        ended = orphans.clear(home)
        log = log_view.EventLog(home.logs / "supervisor.log")
        follower = log_view.Follower(home.logs)
        if ended:
            log.event("former_run_ended", "warning", processes=ended)
        try:
            with explained(home.path):
                prepared = prepare(home, options, services)
            asyncio.run(_Watch(home, prepared, log, follower, show).run(on_up, began))
        finally:
            home.connection.unlink(missing_ok=True)
            log.close()


def down(home: Home) -> bool:
    """Stop the stack and whatever a former one left; return whether one was running."""
    with explained(home.path):
        holder = lock.holder(home.lock)
        if holder is not None:
            _stop_supervisor(*holder)
        orphans.clear(home)
        home.connection.unlink(missing_ok=True)
    return holder is not None


def purge(home: Home) -> None:
    """Stop the stack and delete everything it keeps: databases, objects, keys, logs."""
    down(home)
    EmbeddedPostgres(home.postgres, passfile=home.pgpass).remove()
    home.remove()


def prepare(home: Home, options: Options, services: Services) -> Prepared:
    """Make what is missing: keys, certificates, the data directory; settle ports and settings."""
    environment = inherited_environment()
    certificates.ensure(home.tls)
    keys.ensure_task_key(home.task_keys)
    keys.ensure_worker_token(home.worker_token)
    keys.ensure_user_token(home.user_token, keys.ensure_user_key(home.user_keys))
    java = jvm.choose(environment)
    remembered = configuration.read(home.config)
    pools = configuration.parse_rpc_urls(options.rpc_urls) or remembered.rpc_pools
    postgres = EmbeddedPostgres(home.postgres, passfile=home.pgpass)
    postgres.prepare()
    check_space(postgres.directory.resolve())
    ports = configuration.settle_ports(remembered.ports, options.ports)
    settled = Configuration(ports, pools)
    configuration.write(home.config, settled)
    postgres.port = ports["postgres"].number
    server = postgres.server()
    where = connection.describe(
        home,
        api=ports["api"].number,
        internal=ports["internal"].number,
        query=ports["query"].number,
        pid=os.getpid(),
    )
    plan = Blueprint(home, settled, where, databases.dsns(server), java, options.workers)
    parts = [
        postgres_part(postgres, lambda: databases.provision(server)),
        *services(plan, environment),
    ]
    return Prepared(where, parts)


@dataclass
class _Watch:
    """One run of a prepared stack, with the chores beside it."""

    home: Home
    prepared: Prepared
    log: log_view.EventLog
    follower: log_view.Follower
    show: Show | None

    async def run(self, on_up: OnUp, began: float) -> None:
        """Supervise until a signal; rotate the logs and show them meanwhile."""
        supervisor = Supervisor(self.prepared.parts, self.home.logs, self.log, self._record)
        _stop_on_signals(supervisor)
        chores = [asyncio.create_task(self._rotate()), asyncio.create_task(self._follow())]
        try:
            await supervisor.run(lambda: self._announce(on_up, began))
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            self._show_all()

    def _record(self, parts: Sequence[PartRecord]) -> None:
        record.write(self.home.record, parts)

    def _announce(self, on_up: OnUp, began: float) -> None:
        where = self.prepared.connection
        connection.write(self.home.connection, where)
        seconds = round(time.monotonic() - began, 2)
        self.log.event("stack_up", seconds=seconds, api=where.api_url)
        self._show_all()
        on_up(where, seconds)

    async def _follow(self) -> None:
        while True:
            self._show_all()
            await asyncio.sleep(_FOLLOW_EVERY)

    async def _rotate(self) -> None:
        while True:
            await asyncio.sleep(_ROTATE_EVERY)
            try:
                log_view.rotate(self.home.logs)
            except OSError as refused:
                self.log.event("logs_not_rotated", "error", error=str(refused))

    def _show_all(self) -> None:
        """Show what is new, unless nobody looks: a closed terminal is no reason to stop."""
        if self.show is None:
            return
        try:
            for line in self.follower.lines():
                self.show(line)
        except BrokenPipeError:
            self.show = None
            self.log.event("nobody_looks")


def _stop_on_signals(supervisor: Supervisor) -> None:
    loop = asyncio.get_running_loop()
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(sent) is not signal.SIG_IGN:  # nohup means it
            loop.add_signal_handler(sent, supervisor.request_stop)


def _stop_supervisor(pid: int, created: float) -> None:
    supervisor = process_tree.same_process(pid, created)
    if supervisor is None:
        return
    process_tree.end([supervisor], signal.SIGTERM, signal.SIGKILL, grace=_STOP_WITHIN)
