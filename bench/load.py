"""A load generator: many workers' calls over TLS, as cheaply as Python can make them."""

import asyncio
import ssl
from collections import deque
from pathlib import Path
from typing import Any, cast

import orjson


class Connection(asyncio.Protocol):
    """One keep-alive HTTPS connection; answers come in the order of the requests."""

    def __init__(self) -> None:
        self._buffer = b""
        self._waiters: deque[asyncio.Future[bytes]] = deque()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._waiters:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            at = head.lower().index(b"content-length:") + 15
            length = int(head[at:].split(b"\r\n", 1)[0])
            if len(rest) < length:
                return
            body, self._buffer = rest[:length], rest[length:]
            waiter = self._waiters.popleft()
            if head.startswith(b"HTTP/1.1 200"):
                waiter.set_result(body)
            else:
                waiter.set_exception(RuntimeError(body.decode()))

    def connection_lost(self, exc: Exception | None) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(exc or ConnectionResetError("closed"))

    async def post(self, path: bytes, header: bytes, body: bytes) -> Any:
        assert self._transport is not None
        waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._transport.write(
            b"POST %b HTTP/1.1\r\nhost: t\r\n%b\r\ncontent-length: %d\r\n\r\n%b"
            % (path, header, len(body), body)
        )
        return orjson.loads(await waiter)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def connect(port: int, ca: Path) -> Connection:
    """Open a connection to a listener on loopback."""
    context = ssl.create_default_context(cafile=str(ca))
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(
        Connection, "127.0.0.1", port, ssl=context, server_hostname="127.0.0.1"
    )
    return protocol


async def claim(conn: Connection, worker_token: bytes, task_id: str, worker: str) -> Any:
    """One claim by id."""
    body = orjson.dumps({"task_id": task_id, "worker_id": worker})
    return await conn.post(b"/internal/task-claim", b"x-trace-worker-token: " + worker_token, body)


async def claim_many(conn: Connection, token: bytes, runtime: str, worker: str, n: int) -> Any:
    """The extension: up to `n` tasks in one call."""
    body = orjson.dumps({"runtime": runtime, "worker_id": worker, "max_tasks": n})
    header = b"x-trace-worker-token: " + token
    return (await conn.post(b"/internal/task-claim-many", header, body))["claimed"]


async def complete_many(conn: Connection, worker_token: bytes, tasks: list[Any]) -> None:
    """The extension: several completions in one call, each with its own token."""
    completions = [
        {
            "task_id": task["task"]["task_id"],
            "attempt": task["attempt"],
            "lease_token": task["lease_token"],
            "capability_token": task["capability_token"],
            "status": "Completed",
        }
        for task in tasks
    ]
    header = b"x-trace-worker-token: " + worker_token
    body = orjson.dumps({"completions": completions})
    answer = await conn.post(b"/internal/task-complete-many", header, body)
    refused = [item for item in answer["results"] if item["status"] != "Accepted"]
    if refused:
        raise RuntimeError(refused)


async def complete(conn: Connection, claimed: Any, **fields: Any) -> Any:
    """One completion."""
    body = {
        "task_id": claimed["task"]["task_id"],
        "attempt": claimed["attempt"],
        "lease_token": claimed["lease_token"],
        "status": "Completed",
        **fields,
    }
    token = claimed["capability_token"].encode()
    header = b"x-trace-task-capability: " + token
    return await conn.post(b"/v1/task/complete", header, orjson.dumps(body))
