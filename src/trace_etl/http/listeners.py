"""Running HTTPS listeners in one process until somebody asks it to stop."""

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
from trace_etl.http.small_server import LeanApp, LeanProtocol
from trace_etl.model.errors import TraceError

_GRACE = 4  # seconds for requests under way once we were asked to stop


class CannotListen(TraceError):
    """The address of a listener cannot be had."""

    code = "cannot_listen"


@dataclass(frozen=True)
class Tls:
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path


@dataclass(frozen=True)
class Listener:
    """An app and the address it answers at."""

    app: ASGIApp | LeanApp
    host: str
    port: int
    lean: bool = False
    """The app is a LeanApp: small calls, served cheaply, without streaming."""
    on_stop: Callable[[], None] | None = None
    """Called when the process is asked to stop: answers that would never end end now."""


class _Protocol(HttpToolsProtocol):
    """Lets an endless answer drop a reader that does not read."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions = {**self.scope.get("extensions", {}), ABORT: self.transport.abort}
        self.scope["extensions"] = extensions  # type: ignore[typeddict-item]


class _Server(uvicorn.Server):
    """Is told when to stop, where uvicorn's own looks ten times a second, for ever."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._asked = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._asked.set()

    async def main_loop(self) -> None:
        every = 1.0 if self.config.date_header else None  # second: the date that answers carry
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await self._asked.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        # Several servers share the process: signals are handled once, by `stop_on_signals`.
        yield


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a service's main coroutine to its end."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def serve(listeners: list[Listener], *, tls: Tls, stop: asyncio.Event) -> None:
    """Answer on every listener until `stop` is set, then finish what is under way.

    Raises CannotListen before anything was answered, if an address is taken.
    """
    sockets = [_bind(listener.host, listener.port) for listener in listeners]
    servers = [_Server(_config(listener, tls)) for listener in listeners]
    async with asyncio.TaskGroup() as group:
        stopper = group.create_task(_stop_when_asked(listeners, servers, stop))
        serving = [
            group.create_task(server.serve(sockets=[sock]))
            for server, sock in zip(servers, sockets, strict=True)
        ]
        await asyncio.wait(serving)
        stopper.cancel()


async def _stop_when_asked(
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
        lifespan="off" if listener.lean else "auto",
        ssl_certfile=str(tls.cert),
        ssl_keyfile=str(tls.key),
        http=LeanProtocol if listener.lean else _Protocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=not listener.lean,
        proxy_headers=False,
        backlog=2048,
        timeout_keep_alive=75,  # longer than a heartbeat: workers keep their connection
        timeout_graceful_shutdown=_GRACE,
    )
