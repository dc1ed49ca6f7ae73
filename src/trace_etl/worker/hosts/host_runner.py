"""Run operators in hosts: processes apart from the worker, one for each organisation."""

import json
import shutil
import tempfile
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import structlog
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from trace_etl.api.task.lifecycle import TaskPayload, TaskResult
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.link import DispatcherLink
from trace_etl.worker.hosts.host_process import HostCommand, HostLost, HostProcess
from trace_etl.worker.settings import HostSettings, WorkerSettings

_log = structlog.stdlib.get_logger()
_PASSED = ("TRACE_HOME",)
_WITHHELD = ("TRACE_", "PG")


@dataclass
class _Warm:
    """A host with its temporary directory, and the tasks that use it."""

    process: HostProcess
    temporary: Path
    users: int = 0


@dataclass(eq=False)
class HostRunner(Collector):
    """Starts hosts when tasks need them, and passes tasks on."""

    cfg: WorkerSettings
    slots: int
    environment: Mapping[str, str] = field(repr=False)
    """The environment of the worker. A host gets a part of it."""
    _hosts: dict[UUID, _Warm] = field(default_factory=dict[UUID, _Warm])
    """The hosts by organisation, the least recently used first."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _starting: threading.Lock = field(default_factory=threading.Lock)

    def warm(self) -> None:
        """Start the host of the stack's own organisation, and Spark in it. Raises TraceError."""
        with self._use(self.cfg.org_id) as host:
            host.warm()

    def run(self, task: TaskPayload, link: DispatcherLink) -> TaskResult:
        """Run a task in the host of its organisation. Raises FailedInHost, HostLost."""
        with self._use(task.org_id or self.cfg.org_id) as host:
            return host.run(task, link)

    def cancel(self, task_id: UUID, within: float) -> None:
        """Cancel a task. If it does not end within these seconds, its host is killed."""
        with self._lock:
            hosts = list(self._hosts.values())
        for host in hosts:
            host.process.cancel(task_id, within)

    def cool(self) -> None:
        """Stop the hosts without tasks. The next task starts its host again."""
        self._stop(self._take_idle(keep=0))

    def close(self) -> None:
        """Stop all hosts."""
        with self._lock:
            taken = list(self._hosts.values())
            self._hosts.clear()
        self._stop(taken)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the hosts, for the worker's endpoint."""
        with self._lock:
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

    @contextmanager
    def _use(self, org_id: UUID) -> Generator[HostProcess]:
        host = self._find(org_id)
        if host is None:
            with self._starting:
                host = self._find(org_id) or self._start(org_id)
        try:
            yield host.process
        finally:
            with self._lock:
                host.users -= 1

    def _find(self, org_id: UUID) -> _Warm | None:
        """Reserve the host of an organisation, if it runs."""
        with self._lock:
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
        self._stop(self._take_idle(keep=self.slots - 1))
        temporary = Path(tempfile.mkdtemp(prefix="host-"))
        try:
            process = HostProcess(self._make_command(org_id, temporary))
        except HostLost:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        host = _Warm(process, temporary, users=1)
        with self._lock:
            self._hosts[org_id] = host
        _log.info("host_started", org_id=str(org_id), pid=process.pid)
        return host

    def _take_idle(self, keep: int) -> list[_Warm]:
        """Remove and return hosts that no task uses, until at most `keep` are left."""
        with self._lock:
            idle = [org_id for org_id, host in self._hosts.items() if host.users == 0]
            surplus = max(0, len(self._hosts) - keep)
            return [self._hosts.pop(org_id) for org_id in idle[:surplus]]

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
            "TRACE_SLOTS": str(self.slots),
            "TMPDIR": str(temporary),
        }
        environment = {**pick_environment(self.environment), **settings}
        return HostCommand(environment, temporary, self._list_paths(org_id, scratch, temporary))

    def _list_paths(self, org_id: UUID, scratch: Path, temporary: Path) -> str:
        """Return the paths that a host may use, as JSON: those of all hosts, and those of its own."""
        common = self.cfg.host_paths
        if common is None:
            return "null"
        own = [scratch, temporary]
        objects = self.cfg.open_objects()
        if isinstance(objects, FileStore):
            own.append(objects.make_org_directory(org_id))
        return json.dumps({"read": common.read, "write": [*common.write, *map(str, own)]})


def pick_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a host: its settings, and what does not belong to Trace."""
    settings = {f"TRACE_{name.upper()}" for name in HostSettings.model_fields}
    allowed = {*settings, *_PASSED}
    return {
        name: value
        for name, value in environment.items()
        if name in allowed or not name.startswith(_WITHHELD)
    }
