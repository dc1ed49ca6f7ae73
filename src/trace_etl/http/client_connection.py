"""Stop work for a client that has disconnected."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

CLIENT_CLOSED_REQUEST = 499
"""The status for the log of a request whose client has disconnected. No client receives it."""
T = TypeVar("T")


class ClientDisconnected(Exception):
    """The client closed its connection before it had the whole reply."""


async def run_while_connected(work: Awaitable[T], receive: Receive) -> T:
    """Await work. Cancels it and raises ClientDisconnected if the client disconnects first."""
    running = asyncio.ensure_future(work)
    disconnected = asyncio.create_task(wait_for_disconnect(receive))
    try:
        await asyncio.wait({running, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise ClientDisconnected
        return running.result()
    finally:
        disconnected.cancel()
        running.cancel()
        await asyncio.wait({running})


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client has disconnected. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
