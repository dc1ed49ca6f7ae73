"""A Dispatcher in a thread, over real HTTPS, with its own keys and tokens."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx

from support.services.postgres import KeptConnection, sql
from support.services.service_thread import running_on_thread, wait_until_listening
from trace_etl.dispatcher.service import Service, run_loops, running
from trace_etl.dispatcher.settings import DispatcherSettings
from trace_etl.dispatcher.task_objects.objects import streams_body
from trace_etl.http.clients.thread_safe_transport import ThreadSafeTransport
from trace_etl.http.server.listeners import Listener, Tls, serve
from trace_etl.lite.credentials import certificates, keys
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.lite.processes.ports import free_port
from trace_etl.queues.pgqueue import PgQueue

MAX_SECONDS = 120.0  # a longer step hangs, even on a busy machine


@dataclass(frozen=True)
class Secrets:
    """Certificates, keys and tokens as files, created once per test process."""

    directory: Path

    @classmethod
    def make(cls, directory: Path) -> "Secrets":
        for name in ("tls", "task", "user", "service", "certificates"):
            (directory / name).mkdir(parents=True, mode=0o700)
        certificates.ensure(directory / "tls")
        keys.ensure_task_key(directory / "task")
        keys.ensure_certificate_key(directory / "certificates")
        user_key = keys.ensure_user_key(directory / "user")
        tokens = {name: directory / "services" / name for name in ("scheduler", "sink")}
        keys.ensure_service_tokens(directory / "service", tokens)
        keys.ensure_worker_token(directory / "worker")
        keys.ensure_user_token(directory / "user.jwt", user_key)
        return cls(directory)

    @property
    def ca(self) -> Path:
        return self.directory / "tls" / "ca.pem"

    @property
    def worker_token(self) -> str:
        return (self.directory / "worker").read_text().splitlines()[0]

    def service_token(self, service: str) -> str:
        return (self.directory / "services" / service).read_text().strip()

    @property
    def user_token(self) -> str:
        return (self.directory / "user.jwt").read_text().strip()

    def settings(self, dsns: Dsns, objects: Path, **changes: Any) -> DispatcherSettings:
        values: dict[str, Any] = {
            "state_dsn": dsns.state,
            "queue_dsn": dsns.queue,
            "api_port": free_port(),
            "internal_port": free_port(),
            "tls_cert": self.directory / "tls" / "server.pem",
            "tls_key": self.directory / "tls" / "server.key",
            "task_keys_dir": self.directory / "task",
            "certificate_keys_dir": self.directory / "certificates",
            "user_keys_dir": self.directory / "user" / "public",
            "service_keys_dir": self.directory / "service" / "public",
            "worker_tokens_file": self.directory / "worker",
            "objects_url": objects.as_uri(),
        }
        return DispatcherSettings(**{**values, **changes})


@dataclass(frozen=True)
class Live:
    """A running Dispatcher with its settings, service and event loop."""

    cfg: DispatcherSettings
    dsns: Dsns
    secrets: Secrets
    service: Service
    loop: asyncio.AbstractEventLoop
    state: KeptConnection

    @property
    def objects(self) -> Path:
        """Return the directory of the object store."""
        return Path(unquote(urlsplit(self.cfg.objects_url).path))

    def run(self, step: Callable[[], Awaitable[Any]]) -> Any:
        """Run a coroutine, for example a loop's `*_once`, in the Dispatcher's event loop."""

        async def call() -> Any:
            return await step()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(MAX_SECONDS)

    def drain(self) -> None:
        """Publish outbox rows until the outbox is empty."""
        while self.run(self.service.publisher.publish_once):
            pass

    def internal(self) -> httpx.Client:
        return _client(self.secrets.ca, f"https://127.0.0.1:{self.cfg.internal_port}", {})

    def user(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.secrets.user_token}"}
        return _client(self.secrets.ca, f"https://127.0.0.1:{self.cfg.api_port}", headers)


def _client(ca: Path, url: str, headers: dict[str, str]) -> httpx.Client:
    context = ssl.create_default_context(cafile=str(ca))
    return httpx.Client(
        base_url=url,
        transport=ThreadSafeTransport(context),
        headers=headers,
        timeout=MAX_SECONDS,
        trust_env=False,
    )


@contextmanager
def live(
    secrets: Secrets, dsns: Dsns, objects: Path, *, loops: bool = False, **changes: Any
) -> Generator[Live]:
    """Run a Dispatcher until the end of the block. Without `loops`, tests call the `*_once` functions."""
    cfg = secrets.settings(dsns, objects, **changes)
    if not loops:  # the time between two calls of a test is no outage
        sql(dsns.state, "UPDATE lease_clock SET seen_at = now() + interval '100 years'")

    @asynccontextmanager
    async def open_service(stop: asyncio.Event) -> AsyncGenerator[Service]:
        async with running(cfg, PgQueue(cfg.queue_dsn)) as service, asyncio.TaskGroup() as group:
            if loops:
                group.create_task(run_loops(service, stop))
            listeners = [
                Listener(service.user, cfg.api_host, cfg.api_port, on_stop=service.changes.close),
                Listener(
                    service.internal,
                    cfg.internal_host,
                    cfg.internal_port,
                    is_rpc=True,
                    streams_body=streams_body,
                ),
            ]
            tls = Tls(cfg.tls_cert, cfg.tls_key)
            group.create_task(serve(listeners, tls=tls, stop=stop, limits=cfg.http_limits))
            await wait_until_listening(cfg.api_port, cfg.internal_port)
            yield service

    with (
        running_on_thread("dispatcher", open_service) as (service, loop),
        closing(KeptConnection(dsns.state)) as state,
    ):
        yield Live(cfg, dsns, secrets, service, loop, state)
