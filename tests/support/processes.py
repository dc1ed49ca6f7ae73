"""Dispatchers as separate processes that a test can kill and restart."""

import os
import signal
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from support.dispatcher import Secrets
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.lite.processes.ports import free_port

START_TIMEOUT_SECONDS = 240.0


@dataclass
class DispatcherProcess:
    """One replica. A restart keeps its ports."""

    secrets: Secrets
    dsns: Dsns
    directory: Path
    """Directory of its objects and its log."""
    settings: dict[str, str] = field(default_factory=dict)
    api_port: int = field(default_factory=free_port)
    internal_port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.directory / f"{self.internal_port}.log"

    @property
    def resident_kib(self) -> int:
        """The memory of the process."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    @property
    def loop_seconds(self) -> float:
        """The processor time of the main thread, which runs the event loop."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    @property
    def internal_url(self) -> str:
        return f"https://127.0.0.1:{self.internal_port}"

    @property
    def api_url(self) -> str:
        return f"https://127.0.0.1:{self.api_port}"

    def start(self) -> None:
        """Start the process without waiting until it answers."""
        self.directory.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trace_etl.dispatcher"],
                env=self._environment(),
                stdout=log,
                stderr=log,
            )

    def up(self) -> "DispatcherProcess":
        """Start the process and wait until it answers; restart it if it dies meanwhile."""
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not self.answers():
            assert time.monotonic() < deadline, "the Dispatcher does not answer /healthz"
            if self._process is None or self._process.poll() is not None:
                self.start()
            time.sleep(0.05)
        return self

    def answers(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.secrets.ca))
        try:
            with httpx.Client(verify=context, trust_env=False, timeout=5) as http:
                return http.get(f"{self.internal_url}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """Kill the process, like a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the process with SIGTERM, like an operator."""
        self._end(signal.SIGTERM)

    def _end(self, sent: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(sent)
            self._process.wait(120)
            self._process = None

    def _environment(self) -> dict[str, str]:
        secrets = self.secrets.directory
        return {
            "PATH": os.environ["PATH"],
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
            "TRACE_LOG_LEVEL": "warning",
            **self.settings,
        }
