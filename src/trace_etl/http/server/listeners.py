"""Run several HTTP listeners in one process until a stop signal arrives."""

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import uvicorn
import uvloop
from starlette.types import ASGIApp

from trace_etl.http.server.acceptor import Acceptor
from trace_etl.http.server.asgi_protocol import LimitedAsgiProtocol
from trace_etl.http.server.connection_limits import ConnectionLimits
from trace_etl.http.server.open_files import fit_to_descriptors
from trace_etl.http.server.small_server import RpcApp, SmallHttpProtocol
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

    def load(self) -> ssl.SSLContext:
        """Create the TLS settings of a listener."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.cert, self.key)
        return context


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
    streams_body: Callable[[str, str], bool] = lambda method, path: False
    """For an RpcApp: whether it reads the body of a method and path as a stream."""


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


async def serve(
    listeners: list[Listener],
    *,
    tls: Tls | None,
    stop: asyncio.Event,
    limits: ConnectionLimits | None = None,
) -> None:
    """Serve all listeners until `stop` is set, then finish running requests. Without TLS: plain HTTP.

    Raises CannotListen before serving if an address is taken.
    """
    limits = fit_to_descriptors(limits or ConnectionLimits(), len(listeners))
    context = tls.load() if tls else None
    sockets = [bind(listener.host, listener.port) for listener in listeners]
    async with asyncio.TaskGroup() as group:
        for listener, sock in zip(listeners, sockets, strict=True):
            serve_one = _serve_rpc if listener.is_rpc else _serve_asgi
            group.create_task(serve_one(listener, sock, limits, context, stop))


async def _serve_rpc(
    listener: Listener,
    sock: socket.socket,
    limits: ConnectionLimits,
    tls: ssl.SSLContext | None,
    stop: asyncio.Event,
) -> None:
    app = cast("RpcApp", listener.app)

    def connect(on_end: Callable[[], None]) -> SmallHttpProtocol:
        return SmallHttpProtocol(app, limits, on_end, streams_body=listener.streams_body)

    acceptor = Acceptor(sock, connect, limits, tls)
    acceptor.start()
    await stop.wait()
    await acceptor.stop(_GRACE)


async def _serve_asgi(
    listener: Listener,
    sock: socket.socket,
    limits: ConnectionLimits,
    tls: ssl.SSLContext | None,
    stop: asyncio.Event,
) -> None:
    server = _Server(_make_config(cast("ASGIApp", listener.app), limits), sock, limits, tls, stop)
    server.on_stop = listener.on_stop
    await server.serve()


class _Server(uvicorn.Server):
    """uvicorn's server, with an Acceptor instead of the event loop's own accept."""

    on_stop: Callable[[], None] | None = None

    def __init__(
        self,
        config: uvicorn.Config,
        sock: socket.socket,
        limits: ConnectionLimits,
        tls: ssl.SSLContext | None,
        stop: asyncio.Event,
    ) -> None:
        super().__init__(config)
        self._limits = limits
        self._stop_requested = stop
        self._acceptor = Acceptor(sock, self._make_connection, limits, tls)

    def _make_connection(self, on_end: Callable[[], None]) -> LimitedAsgiProtocol:
        return LimitedAsgiProtocol(
            self._limits,
            on_end,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._acceptor.start()

    async def main_loop(self) -> None:
        """Wait for an event to stop. Uvicorn's own loop polls ten times per second."""
        while not await self.on_tick(0):  # updates the Date header each second
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._stop_requested.wait()
                    self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.on_stop is not None:
            self.on_stop()
        self._acceptor.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        # Several servers share the process: signals are handled once, by `stop_on_signals`.
        yield


def _make_config(app: ASGIApp, limits: ConnectionLimits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        interface="asgi3",
        http=LimitedAsgiProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(limits.idle_seconds) + 1,  # the Acceptor closes idle connections
        timeout_graceful_shutdown=_GRACE,
    )


def bind(host: str, port: int) -> socket.socket:
    """Bind a listening socket. Raises CannotListen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise CannotListen(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another port"
        ) from error
    return sock
