"""The stack that benchmarks use: a durable Postgres and a Dispatcher process."""

import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg

from bench import trivial_operator
from trace_etl.lite.credentials import certificates, keys
from trace_etl.lite.postgres import databases
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.lite.postgres.server import EmbeddedPostgres, Server
from trace_etl.lite.processes import probes
from trace_etl.lite.processes.ports import free_port

_START_TIMEOUT = 180.0
_POST_TIMEOUT = 180.0


@dataclass(frozen=True)
class BenchStack:
    """A running Postgres and Dispatcher."""

    directory: Path
    server: Server
    dsns: Dsns
    api_port: int
    internal_port: int

    @property
    def ca(self) -> Path:
        return self.directory / "tls" / "ca.pem"

    @property
    def python_path(self) -> str:
        """Where its processes find the operator of the benchmarks."""
        return f"{self.directory / 'packages'}:{Path(__file__).parents[1]}"

    @property
    def worker_token(self) -> bytes:
        return (self.directory / "worker").read_bytes().split()[0]

    @property
    def user_token(self) -> str:
        return (self.directory / "user.jwt").read_text().strip()

    def execute(self, query: str, values: object = None) -> list[tuple]:
        with psycopg.connect(self.dsns.state, autocommit=True) as conn:
            cursor = conn.execute(query, values)
            return cursor.fetchall() if cursor.description else []

    def settle(self) -> None:
        """Write dirty pages to disk, so that the next measurement does not pay for them."""
        with psycopg.connect(self.server.admin_dsn(), autocommit=True) as conn:
            conn.execute("CHECKPOINT")

    def post(self, path: str, body: dict[str, object]) -> None:
        """POST to the user API."""
        context = ssl.create_default_context(cafile=str(self.ca))
        headers = {"Authorization": f"Bearer {self.user_token}"}
        with httpx.Client(
            verify=context, trust_env=False, headers=headers, timeout=_POST_TIMEOUT
        ) as http:
            http.post(f"https://127.0.0.1:{self.api_port}{path}", json=body).raise_for_status()

    def environment(self, *, api_port: int, internal_port: int) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": self.python_path,
            "TRACE_STATE_DSN": self.dsns.state,
            "TRACE_QUEUE_DSN": self.dsns.queue,
            "TRACE_API_PORT": str(api_port),
            "TRACE_INTERNAL_PORT": str(internal_port),
            "TRACE_TLS_CERT": str(self.directory / "tls" / "server.pem"),
            "TRACE_TLS_KEY": str(self.directory / "tls" / "server.key"),
            "TRACE_TASK_KEYS_DIR": str(self.directory / "task"),
            "TRACE_CERTIFICATE_KEYS_DIR": str(self.directory / "certificates"),
            "TRACE_USER_KEYS_DIR": str(self.directory / "user" / "public"),
            "TRACE_SERVICE_KEYS_DIR": str(self.directory / "service" / "public"),
            "TRACE_WORKER_TOKENS_FILE": str(self.directory / "worker"),
            "TRACE_OBJECTS_URL": (self.directory / "objects").as_uri(),
            "TRACE_LOG_LEVEL": "error",
        }


def create_credentials(directory: Path) -> Path:
    """Create the keys, certificates and tokens that a Dispatcher needs."""
    for part in ("tls", "task", "user", "service", "certificates", "objects"):
        (directory / part).mkdir(mode=0o700)
    certificates.ensure(directory / "tls")
    keys.ensure_task_key(directory / "task")
    keys.ensure_certificate_key(directory / "certificates")
    keys.ensure_user_token(directory / "user.jwt", keys.ensure_user_key(directory / "user"))
    keys.ensure_service_tokens(directory / "service", {"sink": directory / "sink" / "token"})
    keys.ensure_worker_token(directory / "worker")
    return directory


@contextmanager
def start_stack() -> Generator[BenchStack]:
    """Start Postgres with durable commits and one Dispatcher; remove both at the end."""
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as name:
        directory = create_credentials(Path(name))
        embedded = EmbeddedPostgres(directory / "postgres")
        server = embedded.start()
        try:
            dsns = databases.provision(server)
            trivial_operator.install(directory / "packages")
            stack = BenchStack(directory, server, dsns, free_port(), free_port())
            with run_dispatcher(stack, stack.api_port, stack.internal_port):
                yield stack
        finally:
            embedded.stop()
            embedded.remove()


@contextmanager
def run_dispatcher(stack: BenchStack, api_port: int, internal_port: int) -> Generator[int]:
    """Start a Dispatcher on these ports and wait until it is ready. Yields its pid."""
    process = subprocess.Popen(
        [sys.executable, "-m", "trace_etl.dispatcher"],
        env=stack.environment(api_port=api_port, internal_port=internal_port),
    )
    try:
        _wait_until_ready(stack, process, api_port, internal_port)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def _wait_until_ready(stack: BenchStack, process: subprocess.Popen[bytes], *ports: int) -> None:
    """Wait until both listeners of the Dispatcher answer their health checks.

    The first start on a machine compiles and loads every module from a cold disk: allow minutes.
    """
    deadline = time.monotonic() + _START_TIMEOUT
    is_ready = probes.http(str(stack.ca), *(f"https://127.0.0.1:{port}" for port in ports))
    while not is_ready(process.pid):
        if process.poll() is not None:
            raise RuntimeError(f"the Dispatcher exited with code {process.returncode}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"the Dispatcher was not ready after {_START_TIMEOUT:.0f} s")
        time.sleep(0.02)
