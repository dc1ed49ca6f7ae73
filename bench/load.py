"""Generate the calls of many workers over TLS, with as little CPU as possible."""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import orjson


class Connection(asyncio.Protocol):
    """One keep-alive HTTPS connection; responses arrive in the order of the requests."""

    def __init__(self) -> None:
        self._buffer = b""
        self._callbacks: deque[Callable[[bytes | Exception], None]] = deque()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._callbacks:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            at = head.index(b"content-length: ") + 16
            length = int(head[at:].split(b"\r\n", 1)[0])
            if len(rest) < length:
                return
            body, self._buffer = rest[:length], rest[length:]
            is_good = head.startswith(b"HTTP/1.1 200")
            self._callbacks.popleft()(body if is_good else RuntimeError(body.decode()))

    def connection_lost(self, exc: Exception | None) -> None:
        while self._callbacks:
            self._callbacks.popleft()(exc or ConnectionResetError("closed"))

    def send(
        self, path: bytes, header: bytes, body: bytes, callback: Callable[[bytes | Exception], None]
    ) -> None:
        """Send a request; `callback` gets the body of the response or an exception."""
        assert self._transport is not None
        self._callbacks.append(callback)
        self._transport.write(
            b"POST %b HTTP/1.1\r\nhost: t\r\n%b\r\ncontent-length: %d\r\n\r\n%b"
            % (path, header, len(body), body)
        )

    async def post(self, path: bytes, header: bytes, body: bytes) -> Any:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.send(path, header, body, partial(_settle, answer))
        return orjson.loads(await answer)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _settle(future: "asyncio.Future[Any]", answer: object) -> None:
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


class SequentialLoad:
    """Claims tasks by id and completes them, one after the other, until none is left.

    The callback of each response sends the next request, because the generator shares the two cores
    with the system under test and must use little CPU.
    """

    def __init__(self, conn: Connection, worker_token: bytes, worker: str, ids: list[str]) -> None:
        self._conn = conn
        self._header = b"x-trace-worker-token: " + worker_token
        self._worker = worker.encode()
        self._ids = ids
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def drain(self) -> None:
        self._claim()
        await self._done

    def _claim(self) -> None:
        if not self._ids:
            _settle(self._done, None)
            return
        body = b'{"task_id":"%b","worker_id":"%b"}' % (self._ids.pop().encode(), self._worker)
        self._conn.send(b"/internal/task-claim", self._header, body, self._claimed)

    def _claimed(self, answer: bytes | Exception) -> None:
        if isinstance(answer, Exception):
            _settle(self._done, answer)
            return
        claimed = orjson.loads(answer)
        body = b'{"task_id":"%b","attempt":%d,"lease_token":"%b","status":"Completed"}' % (
            claimed["task"]["task_id"].encode(),
            claimed["attempt"],
            claimed["lease_token"].encode(),
        )
        header = b"x-trace-task-capability: " + claimed["capability_token"].encode()
        self._conn.send(b"/v1/task/complete", header, body, self._completed)

    def _completed(self, answer: bytes | Exception) -> None:
        if isinstance(answer, Exception):
            _settle(self._done, answer)
        else:
            self._claim()


async def connect(port: int, ca: Path) -> Connection:
    """Open a connection to a listener on loopback."""
    context = ssl.create_default_context(cafile=str(ca))
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(
        Connection, "127.0.0.1", port, ssl=context, server_hostname="127.0.0.1"
    )
    return protocol


async def claim(conn: Connection, worker_token: bytes, task_id: str, worker: str) -> Any:
    """Claim one task by id."""
    body = orjson.dumps({"task_id": task_id, "worker_id": worker})
    return await conn.post(b"/internal/task-claim", b"x-trace-worker-token: " + worker_token, body)


async def claim_many(conn: Connection, token: bytes, runtime: str, worker: str, n: int) -> Any:
    """Claim up to `n` tasks in one call."""
    body = orjson.dumps({"runtime": runtime, "worker_id": worker, "max_tasks": n})
    header = b"x-trace-worker-token: " + token
    return (await conn.post(b"/internal/task-claim-many", header, body))["claimed"]


async def complete_many(conn: Connection, worker_token: bytes, tasks: list[Any]) -> None:
    """Complete several tasks in one call, each with its own token."""
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
