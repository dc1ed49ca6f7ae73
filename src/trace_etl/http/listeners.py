"""Run several HTTPS listeners in one process until a stop signal arrives."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import uvicorn
import uvloop
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from trace_etl.http.event_stream import ABORT
from trace_etl.http.small_server import RpcApp, SmallHttpProtocol
from trace_etl.model.errors import TraceError

_GRACE = 4  # seconds for running requests to finish after a stop signal


class CannotListen(TraceError):
    """The address of a listener is taken or not available."""

    code = "cannot_listen"


@dataclass(frozen=True)
class Tls:
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path


@dataclass(frozen=True)
class Listener:
    """An app and the address it serves."""

    app: ASGIApp | RpcApp
    host: str
    port: int
    is_rpc: bool = False
    """The app is an RpcApp, served by the small HTTP server instead of ASGI."""
    on_stop: Callable[[], None] | None = None
    """Called before shutdown, to end responses that would otherwise stay open."""


class _AbortableProtocol(HttpToolsProtocol):
    """Add the `ABORT` extension, so that an event stream can drop a client that does not read."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions = {**self.scope.get("extensions", {}), ABORT: self.transport.abort}
        self.scope["extensions"] = extensions  # type: ignore[typeddict-item]


class _Server(uvicorn.Server):
    """Wait for an event to stop. Uvicorn's own server polls ten times per second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stop_requested = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stop_requested.set()

    async def main_loop(self) -> None:
        interval = 1.0 if self.config.date_header else None  # updates the Date header each second
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._stop_requested.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        # Several servers share the process: signals are handled once, by `stop_on_signals`.
        yield


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a service's main coroutine until it returns."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def serve(listeners: list[Listener], *, tls: Tls, stop: asyncio.Event) -> None:
    """Serve all listeners until `stop` is set, then finish running requests.

    Raises CannotListen before serving if an address is taken.
    """
    sockets = [_bind(listener.host, listener.port) for listener in listeners]
    servers = [_Server(_config(listener, tls)) for listener in listeners]
    async with asyncio.TaskGroup() as group:
        stopper = group.create_task(_stop_servers(listeners, servers, stop))
        serving = [
            group.create_task(server.serve(sockets=[sock]))
            for server, sock in zip(servers, sockets, strict=True)
        ]
        await asyncio.wait(serving)
        stopper.cancel()


async def _stop_servers(
    listeners: list[Listener], servers: list[_Server], stop: asyncio.Event
) -> None:
    await stop.wait()
    for listener in listeners:
        if listener.on_stop is not None:
            listener.on_stop()
    for server in servers:
        server.stop()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return sock


def _config(listener: Listener, tls: Tls) -> uvicorn.Config:
    return uvicorn.Config(
        cast("ASGIApp", listener.app),
        interface="asgi3",
        lifespan="off" if listener.is_rpc else "auto",
        ssl_certfile=str(tls.cert),
        ssl_keyfile=str(tls.key),
        http=SmallHttpProtocol if listener.is_rpc else _AbortableProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=not listener.is_rpc,
        proxy_headers=False,
        backlog=2048,
        timeout_keep_alive=75,  # longer than a heartbeat interval, so that workers reuse their connection
        timeout_graceful_shutdown=_GRACE,
    )
