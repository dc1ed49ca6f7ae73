"""Tests of the small HTTP server: it closes idle connections, but not during a call."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from trace_etl.http.server.acceptor import Acceptor
from trace_etl.http.server.connection_limits import ConnectionLimits
from trace_etl.http.server.small_server import RpcAnswer, RpcRequest, SmallHttpProtocol

IDLE = 0.2
CALL = b"GET / HTTP/1.1\r\nhost: t\r\n\r\n"


class Held:
    """An app that answers after `released` is set."""

    def __init__(self) -> None:
        self.released = asyncio.Event()

    async def answer(self, request: RpcRequest) -> RpcAnswer:
        await self.released.wait()
        return RpcAnswer(b"{}")


@asynccontextmanager
async def served(
    app: Held,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    limits = ConnectionLimits(idle_seconds=IDLE)
    sock = socket.create_server(("127.0.0.1", 0))
    address = sock.getsockname()
    acceptor = Acceptor(
        sock, lambda on_end: SmallHttpProtocol(app, limits, on_end), limits, tls=None
    )
    acceptor.start()
    reader, writer = await asyncio.open_connection(*address)
    yield reader, writer
    writer.close()
    await acceptor.stop(30)


async def test_an_idle_connection_is_closed_but_not_before_its_answer() -> None:
    app = Held()
    async with served(app) as (reader, writer):
        writer.write(CALL)
        try:
            async with asyncio.timeout(3 * IDLE):
                early = await reader.read(1)
        except TimeoutError:
            early = None
        assert early is None  # no answer yet, and the connection is still open
        app.released.set()
        async with asyncio.timeout(30):
            assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200 OK")
            assert await reader.read() == b""  # the server closed the idle connection


async def test_a_connection_in_use_stays_open() -> None:
    app = Held()
    app.released.set()
    async with served(app) as (reader, writer):
        loop = asyncio.get_running_loop()
        end = loop.time() + 4 * IDLE
        while loop.time() < end:
            writer.write(CALL)
            async with asyncio.timeout(30):
                assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200 OK")
