"""Run a service on a thread of the test process."""

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")
_MAX_SECONDS = 240.0


@contextmanager
def running_on_thread(
    name: str, open_service: Callable[[asyncio.Event], AbstractAsyncContextManager[T]]
) -> Generator[tuple[T, asyncio.AbstractEventLoop]]:
    """Run a service on an event loop of its own until the end of the block.

    `open_service` receives the event that stops the service. It yields when the service listens.
    """
    ready = threading.Event()
    box: dict[str, Any] = {}

    async def main() -> None:
        stop = box["stop"] = asyncio.Event()
        box["loop"] = asyncio.get_running_loop()
        async with open_service(stop) as box["service"]:
            ready.set()
            await stop.wait()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(main())
        except BaseException as error:
            box["error"] = error
        finally:
            ready.set()

    thread = threading.Thread(target=run, name=name)
    thread.start()
    ready.wait(_MAX_SECONDS)
    try:
        if "error" not in box:
            yield box["service"], box["loop"]
    finally:
        if thread.is_alive():
            box["loop"].call_soon_threadsafe(box["stop"].set)
        thread.join(_MAX_SECONDS)
        if "error" in box:
            raise box["error"]


async def wait_until_listening(*ports: int) -> None:
    for port in ports:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
                continue
            writer.close()
            break
