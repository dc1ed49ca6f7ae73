"""A connection that nobody uses is closed; one whose call is under way is not."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from uvicorn.config import Config
from uvicorn.server import ServerState

from trace_etl.http.small_server import Answer, LeanProtocol, Request

IDLE = 0.2
CALL = b"GET / HTTP/1.1\r\nhost: t\r\n\r\n"


class Held:
    """Answers when it is let."""

    def __init__(self) -> None:
        self.let = asyncio.Event()

    async def answer(self, request: Request) -> Answer:
        await self.let.wait()
        return Answer(b"{}")


@asynccontextmanager
async def served(
    app: Held,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    config = Config("none", timeout_keep_alive=IDLE)  # type: ignore[arg-type]
    config.loaded_app = app
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: LeanProtocol(config, ServerState(), {}), "127.0.0.1", 0
    )
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        yield reader, writer
        writer.close()


async def test_a_connection_is_closed_when_nothing_comes_and_not_before_its_answer() -> None:
    app = Held()
    async with served(app) as (reader, writer):
        writer.write(CALL)
        try:
            async with asyncio.timeout(3 * IDLE):
                early = await reader.read(1)
        except TimeoutError:
            early = None
        assert early is None  # still held, and still open
        app.let.set()
        async with asyncio.timeout(30):
            assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200 OK")
            assert await reader.read() == b""  # and then the end


async def test_a_connection_that_is_used_stays() -> None:
    app = Held()
    app.let.set()
    async with served(app) as (reader, writer):
        loop = asyncio.get_running_loop()
        end = loop.time() + 4 * IDLE
        while loop.time() < end:
            writer.write(CALL)
            async with asyncio.timeout(30):
                assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200 OK")
