"""Serve a chain: seal blocks in the background, and mine a block per interval."""

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import monotonic
from typing import TypeVar

from trace_etl.devtools.devchain.chain.devchain import DevChain
from trace_etl.devtools.devchain.rpc.httpd import listen
from trace_etl.devtools.devchain.rpc.jsonrpc import JsonRpc
from trace_etl.devtools.devchain.rpc.methods import NodeMethods, admin_methods

_SLICE_SECONDS = 0.001
_T = TypeVar("_T")


async def run_in_slices(step: Callable[[], bool]) -> None:
    """Repeat a step while it returns True; yield to the event loop every millisecond."""
    has_more = True
    while has_more:
        until = monotonic() + _SLICE_SECONDS
        while has_more and monotonic() < until:
            has_more = step()
        await asyncio.sleep(0)


async def prepare(chain: DevChain) -> None:
    """Seal all blocks, then render blocks in advance until the cache is full."""
    await seal_to(chain, chain.head)
    await run_in_slices(chain.render_next)


async def seal_to(chain: DevChain, number: int) -> None:
    """Seal blocks up to this number, or up to the head if a reorganisation removed the number."""
    if chain.sealed <= number:
        await run_in_slices(lambda: chain.seal_next() and chain.sealed <= number)


async def grow(chain: DevChain, block_time: float) -> None:
    """Mine a block every `block_time` seconds until the chain has its full length."""
    while chain.head < chain.length - 1:
        await asyncio.sleep(block_time)
        chain.mine(1)


@asynccontextmanager
async def serve(
    chain: DevChain, host: str = "127.0.0.1", port: int = 0, *, block_time: float = 0.0
) -> AsyncGenerator[str]:
    """Serve a chain inside the `with` block; yields the URL. Raises OSError if the port is in use."""
    methods = {**NodeMethods(chain).table(), **admin_methods(chain)}
    async with listen(JsonRpc(methods, partial(seal_to, chain)).answer, host, port) as url:
        tasks = [asyncio.create_task(prepare(chain))]
        if block_time > 0:
            tasks.append(asyncio.create_task(grow(chain, block_time)))
        try:
            yield url
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a uvloop event loop, except on Windows, where uvloop does not exist."""
    if sys.platform == "win32":
        return asyncio.SelectorEventLoop()
    import uvloop

    return uvloop.new_event_loop()


class RunningServer:
    """A server of a chain in a thread of this process."""

    def __init__(self, chain: DevChain, host: str, port: int, block_time: float) -> None:
        self._chain = chain
        self._started: Future[str] = Future()
        self._loop = new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(
            target=self._run, args=(host, port, block_time), name="devchain", daemon=True
        )
        self._thread.start()
        self.url = self._started.result()

    def mine(self, blocks: int = 1) -> None:
        """Advance the head."""
        self._run_in_loop(lambda: self._chain.mine(blocks))

    def reorg(self, depth: int) -> int:
        """Replace the last blocks and return the first replaced number. Raises ValueError."""
        return self._run_in_loop(lambda: self._chain.reorg(depth))

    def close(self) -> None:
        """Stop serving. May be called twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def __enter__(self) -> "RunningServer":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run_in_loop(self, action: Callable[[], _T]) -> _T:
        async def act() -> _T:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self._loop).result()

    def _run(self, host: str, port: int, block_time: float) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(host, port, block_time))

    async def _serve(self, host: str, port: int, block_time: float) -> None:
        try:
            async with serve(self._chain, host, port, block_time=block_time) as url:
                self._started.set_result(url)
                await self._stop.wait()
        except OSError as error:
            if self._started.done():
                raise
            self._started.set_exception(error)


def start_server(
    chain: DevChain, host: str = "127.0.0.1", port: int = 0, *, block_time: float = 0.0
) -> RunningServer:
    """Serve a chain from a thread until close(). Raises OSError if the port is in use."""
    return RunningServer(chain, host, port, block_time)
