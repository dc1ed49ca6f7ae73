"""Services as separate processes that a test can kill and restart."""

import multiprocessing
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

import httpx

from support.forked_service import run_service
from support.services.dispatcher import Secrets
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.lite.processes.ports import free_port

START_TIMEOUT_SECONDS = 240.0
# Most of the processor time of a start is imports: one process imports the Dispatcher, and each service is
# a fork of it. Tests of whole stacks start the services as users do.
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["trace_etl.dispatcher.__main__"])


class ServiceProcess:
    """One process of the platform, which answers at a port. A restart keeps its ports."""

    module: str
    _process: multiprocessing.process.BaseProcess | None = None

    @property
    def url(self) -> str:
        """The address of a listener with `/healthz`."""
        raise NotImplementedError

    @property
    def ca(self) -> Path:
        """Verifies the certificate of the listener."""
        raise NotImplementedError

    @property
    def log(self) -> Path:
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        raise NotImplementedError

    @property
    def pid(self) -> int:
        assert self._process is not None and self._process.pid is not None
        return self._process.pid

    @property
    def resident_kib(self) -> int:
        """The memory of the process."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    @property
    def loop_seconds(self) -> float:
        """The processor time of the main thread, which runs the event loop."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def start(self) -> None:
        """Start the process without waiting until it answers."""
        self.log.parent.mkdir(exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "TRACE_LOG_LEVEL": "warning",
            **self.environment(),
        }
        arguments = (self.module, environment, self.log)
        self._process = _forks.Process(target=run_service, args=arguments, daemon=True)
        self._process.start()

    def up(self) -> Self:
        """Start the process and wait until it answers; restart it if it dies meanwhile."""
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not self.answers():
            assert time.monotonic() < deadline, f"{self.module} does not answer /healthz"
            if self._process is None or not self._process.is_alive():
                self.start()
            time.sleep(0.05)
        return self

    def answers(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.ca))
        try:
            with httpx.Client(verify=context, trust_env=False, timeout=5) as http:
                return http.get(f"{self.url}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """Kill the process, like a crash."""
        if self._process is not None:
            self._process.kill()
            self._wait()

    def stop(self) -> None:
        """Stop the process with SIGTERM, like an operator."""
        if self._process is not None:
            self._process.terminate()
            self._wait()

    def _wait(self) -> None:
        assert self._process is not None
        self._process.join(120)
        assert not self._process.is_alive(), f"{self.module} does not end"
        self._process = None


@dataclass
class DispatcherProcess(ServiceProcess):
    """One replica of the Dispatcher."""

    module: ClassVar[str] = "trace_etl.dispatcher"
    secrets: Secrets
    dsns: Dsns
    directory: Path
    """Directory of its objects and its log."""
    settings: dict[str, str] = field(default_factory=dict)
    api_port: int = field(default_factory=free_port)
    internal_port: int = field(default_factory=free_port)

    @property
    def log(self) -> Path:
        return self.directory / f"{self.internal_port}.log"

    @property
    def ca(self) -> Path:
        return self.secrets.ca

    @property
    def internal_url(self) -> str:
        return f"https://127.0.0.1:{self.internal_port}"

    url = internal_url

    @property
    def api_url(self) -> str:
        return f"https://127.0.0.1:{self.api_port}"

    def environment(self) -> Mapping[str, str]:
        secrets = self.secrets.directory
        return {
            "TRACE_STATE_DSN": self.dsns.state,
            "TRACE_QUEUE_DSN": self.dsns.queue,
            "TRACE_API_PORT": str(self.api_port),
            "TRACE_INTERNAL_PORT": str(self.internal_port),
            "TRACE_TLS_CERT": str(secrets / "tls" / "server.pem"),
            "TRACE_TLS_KEY": str(secrets / "tls" / "server.key"),
            "TRACE_TASK_KEYS_DIR": str(secrets / "task"),
            "TRACE_CERTIFICATE_KEYS_DIR": str(secrets / "certificates"),
            "TRACE_USER_KEYS_DIR": str(secrets / "user" / "public"),
            "TRACE_SERVICE_KEYS_DIR": str(secrets / "service" / "public"),
            "TRACE_WORKER_TOKENS_FILE": str(secrets / "worker"),
            "TRACE_OBJECTS_URL": (self.directory / "objects").as_uri(),
            **self.settings,
        }


@dataclass
class OnePortProcess(ServiceProcess):
    """A service with one listener, whose log is in a directory."""

    secrets: Secrets
    directory: Path
    """Directory of its log."""
    settings: dict[str, str] = field(default_factory=dict, kw_only=True)
    port: int = field(default_factory=free_port, kw_only=True)

    @property
    def log(self) -> Path:
        return self.directory / f"{self.port}.log"

    @property
    def ca(self) -> Path:
        return self.secrets.ca

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


@dataclass
class QueryProcess(OnePortProcess):
    """A Query Service, which answers tasks if it knows a Dispatcher. Objects are beside its log."""

    module: ClassVar[str] = "trace_etl.query"
    dsns: Dsns

    def environment(self) -> Mapping[str, str]:
        secrets = self.secrets.directory
        return {
            "TRACE_STATE_DSN": self.dsns.reader,
            "TRACE_DATA_DSN": self.dsns.data_reader,
            "TRACE_QUERY_PORT": str(self.port),
            "TRACE_TLS_CERT": str(secrets / "tls" / "server.pem"),
            "TRACE_TLS_KEY": str(secrets / "tls" / "server.key"),
            "TRACE_TLS_CA": str(secrets / "tls" / "ca.pem"),
            "TRACE_USER_KEYS_DIR": str(secrets / "user" / "public"),
            "TRACE_OBJECTS_URL": (self.directory / "objects").as_uri(),
            **self.settings,
        }


@dataclass
class ConsoleProcess(OnePortProcess):
    """A console with a certificate, in front of services that need not run."""

    module: ClassVar[str] = "trace_etl.console"

    def environment(self) -> Mapping[str, str]:
        tls = self.secrets.directory / "tls"
        return {
            "TRACE_API_URL": "https://127.0.0.1:1",
            "TRACE_QUERY_URL": "https://127.0.0.1:1",
            "TRACE_CONSOLE_PORT": str(self.port),
            "TRACE_CONSOLE_ORIGINS": '["https://t"]',
            "TRACE_CONSOLE_TLS_CERT": str(tls / "server.pem"),
            "TRACE_CONSOLE_TLS_KEY": str(tls / "server.key"),
            "TRACE_TLS_CA": str(self.ca),
            **self.settings,
        }
