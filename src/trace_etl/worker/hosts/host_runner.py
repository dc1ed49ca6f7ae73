"""Run operators in hosts: processes apart from the worker, one for each organisation."""

import shutil
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from uuid import UUID

import structlog
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from trace_etl import account
from trace_etl.api.task.lifecycle import TaskPayload, TaskResult
from trace_etl.objects.file_store import FileStore
from trace_etl.objects.s3_store import S3Store
from trace_etl.spark.dispatcher_link import DispatcherLink
from trace_etl.worker.hosts.host_process import HostLost, HostProcess
from trace_etl.worker.hosts.host_start import HostCommand, HostStarter, Paths
from trace_etl.worker.settings import (
    AllowedPaths,
    HostSettings,
    ServedRuntimes,
    WorkerSettings,
)

_log = structlog.stdlib.get_logger()
_PASSED = ("TRACE_HOME",)
_WITHHELD = ("TRACE_", "PG")
_CHECK_SECONDS = 60.0
_MAX_THREADS = 512
_PLACES_OF_AWS = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL")


@dataclass
class _Warm:
    """A host with its temporary directory, and the tasks that use it."""

    process: HostProcess
    temporary: Path
    users: int = 0
    keep_until: float = 0.0
    """When it ends if no task uses it, on the monotonic clock."""


@dataclass(eq=False)
class HostRunner(Collector):
    """Starts hosts when tasks need them, and passes tasks on."""

    cfg: WorkerSettings
    served: ServedRuntimes
    environment: Mapping[str, str] = field(repr=False)
    """The environment of the worker. A host gets a part of it."""
    starter: HostStarter | None = None
    """The process that gives hosts an account of their own, if Landlock restricts this worker."""
    _hosts: dict[UUID, _Warm] = field(default_factory=dict[UUID, _Warm])
    """The hosts by organisation, the least recently used first."""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _starting: threading.Lock = field(default_factory=threading.Lock)
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_MAX_THREADS, "host-call")
    )
    """For what waits: starts of hosts, and the calls of operators."""
    _is_closed: bool = False

    def __post_init__(self) -> None:
        threading.Thread(target=self._end_idle, name="idle-hosts", daemon=True).start()

    def warm(self) -> None:
        """Start the host of the stack's own organisation, and Spark in it. Raises TraceError."""
        with self._use(self.cfg.org_id, self.served.idle_limit()) as host:
            host.warm()

    def start(self, task: TaskPayload, link: DispatcherLink) -> Future[TaskResult]:
        """Start a task in the host of its organisation.

        The result raises FailedInHost, HostLost, TaskCanceled.
        """
        host = None if self._has_own_credentials else self._find(self._choose_org(task))
        if host is None:  # it must start first, or the task needs credentials
            return self._threads.submit(self._wait_and_run, task, link)
        result = host.process.start(task, link)
        idle_limit = self.served.idle_limit(task.runtime)
        result.add_done_callback(lambda _: self._release(host, idle_limit))
        return result

    def cancel(self, task_id: UUID, attempt: int, within: float) -> None:
        """Cancel an attempt. If it does not end within these seconds, its host is killed."""
        with self._changed:
            hosts = list(self._hosts.values())
        for host in hosts:
            host.process.cancel(task_id, attempt, within)

    def close(self) -> None:
        """Stop all hosts."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            taken = list(self._hosts.values())
            self._hosts.clear()
        self._stop(taken)
        self._threads.shutdown(wait=False)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the hosts, for the worker's endpoint."""
        with self._changed:
            hosts = list(self._hosts.values())
        merged: dict[str, Metric] = {}
        for host in hosts:
            text = ""
            with suppress(HostLost):
                text = host.process.read_metrics()
            for metric in text_string_to_metric_families(text):
                if metric.name.startswith("trace_"):
                    known = merged.setdefault(metric.name, metric)
                    known.samples += metric.samples if known is not metric else []
        return merged.values()

    # --- hosts --------------------------------------------------------------------------------

    def _wait_and_run(self, task: TaskPayload, link: DispatcherLink) -> TaskResult:
        idle_limit = self.served.idle_limit(task.runtime)
        with self._use(self._choose_org(task), idle_limit) as host:
            return host.start(task, link).result()

    def _choose_org(self, task: TaskPayload) -> UUID:
        return task.org_id or self.cfg.org_id

    @contextmanager
    def _use(self, org_id: UUID, idle_limit: float) -> Generator[HostProcess]:
        """Reserve the host of an organisation. It stays for this time after its use."""
        host = self._find(org_id)
        if host is None:
            with self._starting:
                host = self._find(org_id) or self._start(org_id)
        try:
            yield host.process
        finally:
            self._release(host, idle_limit)

    def _release(self, host: _Warm, idle_limit: float) -> None:
        with self._changed:
            host.users -= 1
            host.keep_until = max(host.keep_until, time.monotonic() + idle_limit)
            if idle_limit < _CHECK_SECONDS:  # else the thread that ends hosts looks in time
                self._changed.notify_all()

    def _find(self, org_id: UUID) -> _Warm | None:
        """Reserve the host of an organisation, if it runs."""
        with self._changed:
            host = self._hosts.pop(org_id, None)
            if host is not None and not host.process.is_alive:
                shutil.rmtree(host.temporary, ignore_errors=True)
                host = None
            if host is not None:
                self._hosts[org_id] = host
                host.users += 1
        return host

    def _start(self, org_id: UUID) -> _Warm:
        # A host has a JVM of its own: keep as many as tasks can run at once.
        self._stop(self._take_surplus(keep=self.served.slots - 1))
        temporary = Path(tempfile.mkdtemp(prefix="host-"))
        try:
            command = self._make_command(org_id, temporary)
            process = HostProcess(command, self._threads, self.starter)
        except HostLost:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        host = _Warm(process, temporary, users=1)
        with self._changed:
            self._hosts[org_id] = host
        _log.info("host_started", org_id=str(org_id), pid=process.pid)
        return host

    def _take_surplus(self, keep: int) -> list[_Warm]:
        """Remove and return hosts that no task uses, until at most `keep` are left."""
        with self._changed:
            idle = [org_id for org_id, host in self._hosts.items() if host.users == 0]
            surplus = max(0, len(self._hosts) - keep)
            return [self._hosts.pop(org_id) for org_id in idle[:surplus]]

    def _end_idle(self) -> None:
        """End hosts that were not used for the `idle_timeout` of their runtimes."""
        while not self._is_closed:
            with self._changed:
                ends = [host.keep_until for host in self._hosts.values() if host.users == 0]
                now = time.monotonic()
                self._changed.wait(max(0.0, min([_CHECK_SECONDS, *(end - now for end in ends)])))
                idle = self._take_expired()
            for host in idle:
                _log.info("idle_host_ends", pid=host.process.pid)
            self._stop(idle)

    def _take_expired(self) -> list[_Warm]:
        now = time.monotonic()
        idle = [o for o, h in self._hosts.items() if h.users == 0 and h.keep_until <= now]
        return [self._hosts.pop(org_id) for org_id in idle]

    def _stop(self, hosts: Iterable[_Warm]) -> None:
        for host in hosts:
            host.process.stop()
            shutil.rmtree(host.temporary, ignore_errors=True)

    # --- what a host gets ---------------------------------------------------------------------

    def _make_command(self, org_id: UUID, temporary: Path) -> HostCommand:
        scratch = self.cfg.spark_dir / org_id.hex
        scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        settings = {
            "TRACE_SPARK_DIR": str(scratch),
            "TRACE_SLOTS": str(self.served.slots),
            "TMPDIR": str(temporary),
        }
        environment = {**pick_environment(self.environment), **settings}
        if self._has_own_credentials:
            environment = remove_aws_keys(environment)
        own = self._list_own_paths(org_id, scratch, temporary)
        allowed = self._add_paths(self.cfg.host_paths, own)
        view = self._add_paths(self._find_view(), own)
        return HostCommand(environment, temporary, allowed, view, self._has_own_credentials)

    def _find_view(self) -> AllowedPaths | None:
        """Return the paths that hosts see as another account. None: they run as this worker's account."""
        view = self.cfg.host_view
        if self.cfg.host_paths is not None or view is None or self._account_problem is not None:
            return None
        return view

    @cached_property
    def _account_problem(self) -> str | None:
        """Why hosts cannot run as another account; None: they can."""
        view = self.cfg.host_view or AllowedPaths(read=[], write=[])
        settings: dict[str, object] = {**view.model_dump(), "directory": "/"}
        reason = account.explain_missing(settings)
        if reason is not None:
            _log.warning("host_not_separated", reason=reason)
        return reason

    @cached_property
    def _has_own_credentials(self) -> bool:
        """Whether tasks get credentials of S3."""
        on_s3 = isinstance(self.cfg.open_objects(), S3Store)
        return on_s3 and self.cfg.shared_keys_reason is None

    def _list_own_paths(self, org_id: UUID, scratch: Path, temporary: Path) -> list[str]:
        """Return the paths that one host may write."""
        own = [scratch, temporary]
        objects = self.cfg.open_objects()
        if isinstance(objects, FileStore):
            own.append(objects.make_org_directory(org_id))
        return list(map(str, own))

    def _add_paths(self, common: AllowedPaths | None, own: list[str]) -> Paths | None:
        """Return the paths of all hosts and those of one. None: the host may use everything."""
        if common is None:
            return None
        read = common.read
        if self._has_own_credentials and (keys := self.cfg.s3_credentials_file) is not None:
            read = [path for path in read if Path(path) != keys.resolve()]
        return {"read": read, "write": [*common.write, *own]}


def remove_aws_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without the keys of AWS, and without what finds them."""
    settings = ("TRACE_S3_CREDENTIALS_FILE", "TRACE_S3_PROFILE")
    kept = {
        name: value
        for name, value in environment.items()
        if name in _PLACES_OF_AWS or (not name.startswith("AWS_") and name not in settings)
    }
    return {**kept, "AWS_EC2_METADATA_DISABLED": "true"}


def pick_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a host: its settings, and what does not belong to Trace."""
    settings = {f"TRACE_{name.upper()}" for name in HostSettings.model_fields}
    allowed = {*settings, *_PASSED}
    return {
        name: value
        for name, value in environment.items()
        if name in allowed or not name.startswith(_WITHHELD)
    }
